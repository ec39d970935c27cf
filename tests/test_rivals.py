"""What holds for every rival: the same bits on a pool and after an interruption, on its own or on pooled statistics."""

import pytest
import torch
from conftest import assert_same_bits, comparable, final_tensors, tiny

from pfeddsh.federation.run import resume, run

SMALL = {"hidden": 16}
RIVALS = {
    "fedrep": {}, "fedselect": {"every": 1}, "fedweit": {}, "fedclass": {}, "fedclass-local-head": {},
    "hr": {"codes": 20}, "hr-local-head": {"codes": 20},
    "pfedhn": SMALL, "pfedhn-embed-only": SMALL, "pefll": SMALL, "odpfl-hn": SMALL,
    "ditto-prior": {}, "pfedhn-local-head": SMALL, "fedavg-prior-finetune": {}, "central": {},
}  # fmt: skip


class Interrupted(Exception):
    pass


class Stop:
    """Ends a run within the rounds of its second step."""

    def event(self, kind, facts):
        if kind == "round" and (facts["step"], facts["round"]) == (2, 0):
            raise Interrupted


@pytest.mark.parametrize("method", RIVALS)
def test_a_pool_interrupted_and_resumed_gives_the_bits_of_one_process(method, reference, tmp_path):
    whole = reference(method, options=RIVALS[method])
    with pytest.raises(Interrupted):
        run(tiny(method, options=RIVALS[method], engine="pool"), tmp_path / "run", [Stop()])
    assert comparable(resume(tmp_path / "run")) == comparable(whole.results)
    assert_same_bits(final_tensors(tmp_path / "run"), final_tensors(whole.out))


@pytest.mark.parametrize("method", ["fedavg", "fedper", "fedselect", "fedweit", "pfedhn", "hr"])
def test_statistics_are_a_choice_that_touches_evaluation_alone(method, reference):
    options = RIVALS.get(method, {})
    own, together = (reference(method, options={**options, "statistics": kind}) for kind in ("own", "pooled"))
    assert own.results["acc"] != together.results["acc"]
    shared = final_tensors(together.out)
    assert shared.pop("state:statistics").shape == torch.Size([44])
    assert_same_bits(final_tensors(own.out), shared)
