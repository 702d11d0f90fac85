import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from hpcrl.algorithms.policy_loss import policy_loss

logprob = st.floats(-8, -0.01)
token = st.tuples(logprob, logprob, logprob, st.floats(-3, 3))


def naive(current, proximal, behaviour, advantage, low, high, cap):
    """The same loss from the papers' equations, one token at a time."""
    ratio = math.exp(current - proximal)
    weight = 1.0 if cap is None else min(math.exp(proximal - behaviour), cap)
    return -weight * min(ratio * advantage, min(max(ratio, 1 - low), 1 + high) * advantage)


@given(st.lists(token, min_size=1, max_size=20), st.none() | st.floats(0.5, 4))
def test_against_a_naive_reference(tokens, cap):
    current, proximal, behaviour, advantage = torch.tensor(tokens, dtype=torch.float64).T
    out = policy_loss(current, proximal, behaviour, advantage, clip_low=0.2, clip_high=0.28, importance_cap=cap)
    expected = [naive(*values, 0.2, 0.28, cap) for values in tokens]
    torch.testing.assert_close(out.loss, torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=1e-12)
    assert (out.kl >= -1e-12).all()


def test_a_clipped_token_gives_no_gradient_and_others_do():
    proximal = torch.full((4,), -2.0)
    current = (proximal + torch.tensor([0.5, 0.5, -0.5, 0.0])).requires_grad_()
    advantage = torch.tensor([1.0, -1.0, -1.0, 1.0])
    out = policy_loss(current, proximal, proximal, advantage)
    out.loss.sum().backward()
    assert out.clipped.tolist() == [True, False, True, False]
    assert (current.grad != 0).tolist() == [False, True, False, True]


def test_on_policy_gradient_is_minus_the_advantage():
    current = torch.tensor([-1.0, -2.0], requires_grad=True)
    advantage = torch.tensor([0.5, -1.5])
    policy_loss(current, current.detach(), current.detach(), advantage, importance_cap=2.0).loss.sum().backward()
    torch.testing.assert_close(current.grad, -advantage)


def test_the_importance_weight_is_capped_and_has_no_gradient():
    current = torch.tensor([-1.0, -1.0], requires_grad=True)
    behaviour = torch.tensor([-1.0 - math.log(8), -1.0 + math.log(2)], requires_grad=True)
    out = policy_loss(current, current.detach(), behaviour, torch.ones(2), importance_cap=2.0)
    torch.testing.assert_close(out.loss.detach(), torch.tensor([-2.0, -0.5]))
    torch.testing.assert_close(out.gap, torch.tensor([math.log(8), math.log(2)]))
    out.loss.sum().backward()
    assert behaviour.grad is None
