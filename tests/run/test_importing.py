import gc

import pytest

from hpcrl.run.importing import uncollected


@pytest.fixture(autouse=True)
def _as_before():
    yield
    gc.unfreeze()
    gc.enable()


def imports_what_is_not_there():
    with uncollected():
        assert not gc.isenabled()
        raise ImportError


def test_nothing_is_collected_meanwhile_and_what_is_there_then_is_set_aside():
    with pytest.raises(ImportError):
        imports_what_is_not_there()
    assert gc.isenabled()
    assert gc.get_freeze_count() > 0


def test_who_has_switched_the_collector_off_keeps_it_so():
    gc.disable()
    with uncollected():
        pass
    assert not gc.isenabled()
    assert gc.get_freeze_count() == 0
