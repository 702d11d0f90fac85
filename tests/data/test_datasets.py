from __future__ import annotations

import json

import pytest

from hpcrl.data.procedural import ReasoningGym
from hpcrl.data.records import Records
from hpcrl.run.errors import CheckFailed


def write(path, *records):
    path.write_text("".join(r + "\n" if isinstance(r, str) else json.dumps(r) + "\n" for r in records))
    return str(path)


def test_items_of_several_files_in_order(tmp_path):
    first = write(tmp_path / "a.jsonl", {"question": "1+1?", "answer": "because\n#### 1,002", "level": 3}, "")
    second = write(tmp_path / "b.jsonl", {"question": "2+2?", "answer": 4, "level": 1})
    opened = Records(paths=(first,), prompt_field="question", answer_after="####", system="Be brief.").open()
    assert opened[0].prompt == ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1?"})
    assert (opened[0].answer, opened[0].metadata, opened[0].source) == ("1,002", {"level": 3}, f"{first}:1")
    both = Records(paths=(first, second), prompt_field="question").open()
    assert [item.source for item in (both[0], both[1])] == [f"{first}:1", f"{second}:1"]
    assert json.loads(both[1].record_json()) == {
        "question": "2+2?",
        "answer": "4",
        "metadata": {"level": 1},
        "source": f"{second}:1",
    }


def test_messages_and_plain_text(tmp_path):
    chat = [{"role": "system", "content": "own"}, {"role": "user", "content": "hi"}]
    path = write(tmp_path / "a.jsonl", {"prompt": chat, "answer": "x"})
    assert Records(paths=(path,), system="not this").open()[0].prompt == tuple(chat)
    plain = write(tmp_path / "b.jsonl", {"prompt": "Once upon", "answer": "x"})
    assert Records(paths=(plain,), raw=True).open()[0].prompt == "Once upon"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"prompt": "a", "answer": ', "a.jsonl:2 is not JSON"),
        ("[1]", "a.jsonl:2 holds a list instead of an object"),
        ({"prompt": "a", "anwser": "b"}, "a.jsonl:2 has no field 'answer'; it has ['anwser', 'prompt']"),
        ({"prompt": "", "answer": "b"}, "a.jsonl:2 has a 'prompt' that is neither"),
        ({"prompt": [{"role": "user"}], "answer": "b"}, "a.jsonl:2 has a 'prompt' that is neither"),
        ({"prompt": "a", "answer": None}, "a.jsonl:2 has a 'answer' that is neither"),
        ({"prompt": "a", "answer": "b"}, "a.jsonl:2 has no '####' in its 'answer'"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, said):
    path = write(tmp_path / "a.jsonl", {"prompt": "a", "answer": "#### 1"}, line)
    with pytest.raises(CheckFailed) as caught:
        Records(paths=(path,), answer_after="####").open()
    assert said in str(caught.value)
    assert len(caught.value.problems) == 1


def test_every_bad_line_is_named_up_to_a_limit(tmp_path):
    path = write(tmp_path / "a.jsonl", *["{"] * 100)
    with pytest.raises(CheckFailed) as caught:
        Records(paths=(path,)).open()
    assert len(caught.value.problems) == 20
    assert ":3 is not JSON" in caught.value.problems[2]


def test_no_file_an_empty_one_and_one_in_another_encoding(tmp_path):
    empty = write(tmp_path / "empty.jsonl", "", "")
    latin = tmp_path / "latin.jsonl"
    latin.write_bytes('{"prompt": "é"}'.encode("latin-1"))
    with pytest.raises(CheckFailed) as caught:
        Records(paths=(empty, str(tmp_path / "none.jsonl"), str(latin))).open()
    said = caught.value.problems
    assert "empty.jsonl is empty" in said[0]
    assert "none.jsonl cannot be read: [Errno 2]" in said[1]
    assert "latin.jsonl cannot be read" in said[2]
    with pytest.raises(CheckFailed, match="names no file"):
        Records(paths=()).open()


def test_reasoning_gym_items_are_the_same_at_any_time():
    settings = ReasoningGym(
        task="chain_sum",
        size=50,
        seed=3,
        params={"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1},
        user="{expression} =",
        system="Answer with one number.",
    )
    prompts = settings.open()
    item = prompts[17]
    assert settings.open()[17] == item
    assert len(prompts) == 50
    assert item.prompt[0] == {"role": "system", "content": "Answer with one number."}
    assert item.prompt[1]["content"] == f"{item.metadata['expression']} ="
    assert str(eval(item.metadata["expression"])) == item.answer
    assert json.loads(item.record_json())["metadata"]["source_dataset"] == "chain_sum"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"task": "chain_summ"}, "'chain_summ'"),
        ({"task": "chain_sum", "params": {"min_digitz": 1}}, "min_digitz"),
        ({"task": "chain_sum", "params": {"min_digits": 5, "max_digits": 1}}, "refused"),
        ({"task": "chain_sum", "user": "{nothing}"}, "'nothing', which no item has"),
        ({"task": "chain_sum", "size": 0}, "empty"),
    ],
)
def test_settings_that_reasoning_gym_refuses(settings, said):
    with pytest.raises(CheckFailed) as caught:
        ReasoningGym(**settings).open()
    assert said in str(caught.value)
