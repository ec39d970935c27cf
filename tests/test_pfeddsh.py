"""pFedDSH on the embedded digits: versions of the common model, deviations, zero-shot, offers and the guard."""

from dataclasses import replace

import pytest
import torch
from conftest import assert_same_bits, comparable, final_tensors
from conftest import tiny as usual

from pfeddsh.errors import UserError
from pfeddsh.federation import engines
from pfeddsh.federation.loop import Federation
from pfeddsh.federation.run import resume, run
from pfeddsh.federation.workbench import Workbench
from pfeddsh.mechanisms import averaging, common, guard
from pfeddsh.mechanisms.prior import own_prior
from pfeddsh.mechanisms.replay import INVERSIONS
from pfeddsh.messages import Memory, Message
from pfeddsh.methods import registry
from pfeddsh.methods.pfeddsh import PFedDSH
from pfeddsh.methods.task import Task
from pfeddsh.models.lenet import LeNet
from pfeddsh.models.training import sgd_epoch
from pfeddsh.storage.checkpoint import Checkpoints

GOOD = {"rounds_first": 8, "sample_fraction": 0.8, "lr": 0.1}  # enough to learn the digits


def tiny(method="pfeddsh", **changes):
    """Two rounds a step: enough for whatever does not depend on how good a model is."""
    return usual(method, **{"rounds_first": 2, "rounds_later": 2, **changes})


class Watched(Federation):
    """A federation that keeps every client's memory at the end of every step."""

    def __init__(self, config, folder) -> None:
        bench = Workbench(config)
        self.kept: list[dict] = []
        super().__init__(bench, engines.create(config, bench), Checkpoints(folder), [])
        self.ledger.local = [0.0] * self.plan.clients  # the controls are not what is tested here

    def _snapshot(self, step: int, done: int) -> None:
        super()._snapshot(step, done)
        if done == 0:
            self.kept.append({k: dict(memory.tensors) for k, memory in self.serving.memories.items()})


def watch(config, folder) -> Watched:
    federation = Watched(config, folder)
    federation.run()
    federation.engine.close()
    return federation


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """Finished federations, each computed once; tests must not change them."""
    computed = {}

    def federation(method="pfeddsh", **changes):
        key = repr((method, changes))
        if key not in computed:
            computed[key] = watch(tiny(method, **changes), tmp_path_factory.mktemp("watched"))
        return computed[key]

    return federation


class Declining:
    """Makes every client decline, whatever its evidence."""

    @pytest.fixture(autouse=True)
    def decline(self, monkeypatch):
        monkeypatch.setattr(guard, "prefers", lambda *_: False)


class TestDeclined(Declining):
    """I1, per version: whoever declines keeps its bits."""

    def test_a_client_that_declines_keeps_its_bits_and_its_accuracy(self, tmp_path):
        federation = watch(tiny("pfeddsh"), tmp_path)
        for client in federation.plan.batch(1):
            assert_same_bits(federation.kept[0][client], federation.kept[-1][client])
        first = federation.plan.batch(1)
        assert [federation.ledger.acc[0][k] for k in first] == [federation.ledger.acc[-1][k] for k in first]
        assert federation.ledger.accepted == [None, 0, 0]

    def test_also_after_an_interruption(self, tmp_path):
        class Stop:
            def event(self, kind, facts):
                if kind == "round" and (facts["step"], facts["round"]) == (2, 0):
                    raise InterruptedError

        whole = run(tiny("pfeddsh"), tmp_path / "whole")
        with pytest.raises(InterruptedError):
            run(tiny("pfeddsh"), tmp_path / "run", [Stop()])
        assert comparable(resume(tmp_path / "run")) == comparable(whole)
        assert_same_bits(final_tensors(tmp_path / "run"), final_tensors(tmp_path / "whole"))


def test_on_a_pool_interrupted_and_resumed_it_gives_the_bits_of_one_process(reference, tmp_path):
    """Workers judge offers by their own evidence here; those who decline keep their bits there as well."""

    class Stop:
        def event(self, kind, facts):
            if kind == "round" and (facts["step"], facts["round"]) == (2, 0):
                raise InterruptedError

    whole = reference("pfeddsh")
    assert 0 < whole.results["accepted"][1] < 1, "the test needs some who take the offer and some who decline"
    with pytest.raises(InterruptedError):
        run(usual("pfeddsh", engine="pool"), tmp_path / "run", [Stop()])
    assert comparable(resume(tmp_path / "run")) == comparable(whole.results)
    assert_same_bits(final_tensors(tmp_path / "run"), final_tensors(whole.out))


@pytest.mark.parametrize("name", ["pfeddsh", "pfeddsh-deviation"])
def test_an_accepting_client_is_served_exactly_its_version_and_its_deviation_if_any(monkeypatch, tmp_path, name):
    monkeypatch.setattr(guard, "prefers", lambda *_: True)
    federation = watch(tiny(name), tmp_path)
    method, state = federation.method, federation.state
    memories = federation.serving.memories
    assert any("deviation" in memory for memory in memories.values()) == (name == "pfeddsh-deviation")
    for client in federation.plan.onboarded(2):
        memory, data = memories[client], federation.bench.shard(client)
        assert torch.equal(memory["kept"], state["common/3"] + memory.tensors.get("deviation", 0))
        model = guard.kept(memory, method.prior(data))
        assert torch.equal(model.prior, own_prior(data.train[1], 10))
        plain = method.model.forward(model.theta, data.test[0], model.statistics)
        assert torch.equal(method.logits(model, data.test[0], None), plain + model.prior)
        own = method.model.calibrate(model.theta, data.train[0])
        assert torch.equal(model.statistics, (own + state["statistics"]) / 2)
    halfway = common.blend(state["common/3"], state["trained/3"], 0.5)
    for client in federation.plan.batch(3):
        memory = federation.serving.memories[client]
        assert torch.equal(memory["kept"], halfway + memory.tensors.get("deviation", 0))


def test_a_prior_on_the_logits_is_one_in_the_output_bias():
    """So it does not matter which side adds it."""
    model, generator = LeNet(10), torch.Generator().manual_seed(0)
    theta, images = model.init(generator), torch.randn(20, 3, 32, 32, generator=generator)
    prior = own_prior(torch.tensor([0, 0, 1, 7]), 10)
    folded = theta.clone()
    folded[model.slices["fc3.bias"]] += prior
    assert torch.allclose(model.forward(theta, images) + prior, model.forward(folded, images), atol=1e-5)


def test_the_deviation_is_what_a_client_kept_of_its_own_training(watched):
    federation = watched("pfeddsh-deviation")
    for client in federation.plan.batch(1):
        kept = [memories[client].get("deviation") for memories in federation.kept]
        assert (kept[0] is not None) == bool(federation.plan.visits(1, client))
        assert kept[0] is None or torch.equal(kept[0], kept[-1])


def test_a_visit_leaves_part_of_its_change_and_earlier_ones_fade():
    options = {"rate": 0.5, "fade": 0.25}
    method = registry.create("pfeddsh", options, Task.create(3, 0))
    first, second = torch.randn(2, method.model.size, generator=torch.Generator().manual_seed(0))
    assert isinstance(method, PFedDSH)
    memory = method.deviated(method.deviated(Memory(), first), second)
    assert torch.allclose(memory["deviation"], -0.5 * (0.75 * first + second), atol=1e-6)


def test_the_deviation_is_served_but_never_trained_on(watched):
    with_it, without = (watched(options={"rate": rate, "ask": False}) for rate in (0.1, 0.0))
    for name in ("common/1", "trained/3", "common/3"):
        assert torch.equal(with_it.state[name], without.state[name])
    client = next(k for k in with_it.plan.batch(1) if "deviation" in with_it.kept[0][k])
    kept = [federation.kept[0][client]["kept"] for federation in (with_it, without)]
    assert torch.equal(kept[0], kept[1] + with_it.kept[0][client]["deviation"])


class TestShare:
    """How much of a step existing clients are offered."""

    def test_nothing_new_counts_nothing_moves(self, tmp_path):
        state = watch(tiny("pfeddsh", options={"share": 0.0}), tmp_path).state
        assert torch.equal(state["common/1"], state["common/3"])

    def test_everything_new_is_what_the_step_trained(self, tmp_path):
        state = watch(tiny("pfeddsh", options={"share": 1.0}), tmp_path).state
        assert torch.equal(state["trained/3"], state["common/3"])

    def test_unasked_it_is_the_number_of_newcomers_for_each_existing_client(self, watched):
        state = watched(options={"ask": False}).state
        expected = state["common/2"] + 0.25 * (state["trained/3"] - state["common/2"])  # 2 beside 8
        assert torch.allclose(state["common/3"], expected, atol=1e-7)

    @pytest.mark.parametrize(("said", "taken"), [(0.5, 0.5), (0.0, 0.25)])
    def test_by_default_it_is_what_most_existing_clients_find_best_and_never_less(
        self, monkeypatch, tmp_path, said, taken
    ):
        answers = []

        def judge(self, message, data, memory, visit):
            assert memory.tensors, "it has been there before"
            answers.append((visit.step, visit.client))
            return Message(facts={"share": said if len(answers) % 3 else 1.0}), memory

        monkeypatch.setattr(PFedDSH, "judge", judge)
        federation = watch(tiny("pfeddsh"), tmp_path)
        asked = [client for step, client in answers if step == 3]
        assert sorted(asked) == sorted(federation.plan.onboarded(2))
        state = federation.state
        assert torch.equal(state["common/3"], common.blend(state["common/2"], state["trained/3"], taken))

    def test_nobody_is_asked_where_as_many_come_as_there_are(self, monkeypatch, tmp_path):
        monkeypatch.setattr(PFedDSH, "judge", lambda *_: pytest.fail("there is nothing to choose"))
        state = watch(tiny("pfeddsh", schedule="3+3"), tmp_path).state
        assert torch.equal(state["trained/2"], state["common/2"])

    @pytest.mark.parametrize("better", [0.0, 0.5, 1.0])
    def test_a_client_finds_best_what_predicts_best(self, watched, better):
        """Between two models of noise lies one that it has trained."""
        federation = watched(**GOOD)
        method, client = federation.method, federation.plan.batch(1)[0]
        noise = 10 * torch.randn(method.model.size, generator=torch.Generator().manual_seed(0))
        good = federation.state["common/1"]
        ends = {"before": good - better * noise, "trained": good + (1 - better) * noise}
        visit = federation.bench.visit(2, 0, client)
        answer, memory = method.judge(
            Message(ends, {"least": 0.0}), federation.bench.shard(client), federation.serving.memories[client], visit
        )
        assert answer.facts == {"share": better}
        assert memory is federation.serving.memories[client]

    def test_a_client_that_answers_falsely_does_not_decide(self):
        assert common.agreed([0.125] * 4 + [1.0] * 3, least=0.0625) == 0.125

    def test_one_or_two_do_not_decide_for_all(self):
        assert common.agreed([1.0, 1.0], least=0.0625) == common.agreed([], least=0.0625) == 0.0625


@pytest.mark.parametrize(("share", "version"), [(0.0, "common/3"), (1.0, "trained/3")])
def test_newcomers_are_served_between_the_version_and_what_their_step_trained(tmp_path, share, version):
    federation = watch(tiny("pfeddsh", options={"newcomer_share": share}), tmp_path)
    for client in federation.plan.batch(3):
        assert torch.equal(federation.serving.memories[client]["kept"], federation.state[version])


def test_a_common_model_alone_with_everything_new_is_prior_aware_fedavg(tmp_path, monkeypatch):
    """Plain mean, no blending: the simplest control is within the method."""
    monkeypatch.setattr(common, "row_shares", lambda model, deltas: torch.ones(len(deltas), model.classes))
    options = {"share": 1.0}
    ours = Watched(tiny("pfeddsh-unguarded", options=options), tmp_path / "ours")
    plain = Watched(tiny("fedavg-prior"), tmp_path / "plain")
    for federation in (ours, plain):
        federation._open(1)
        for round in (0, 1):  # rounding grows from round to round
            federation._round(1, round)
    assert torch.allclose(ours.state["common"], plain.state["theta"], atol=1e-6)
    assert not torch.allclose(ours.state["common"], ours.bench.task.theta0, atol=1e-3)


class TestCommonMean:
    model = LeNet(3)

    def deltas(self):
        return torch.randn(2, self.model.size, generator=torch.Generator().manual_seed(0))

    def test_below_the_output_layer_it_is_weighted_by_samples(self):
        deltas = self.deltas()
        mean = common.mean(self.model, deltas, torch.tensor([3.0, 1.0]))
        body = self.model.body
        assert torch.allclose(mean[body], 0.75 * deltas[0, body] + 0.25 * deltas[1, body], atol=1e-6)

    def test_a_row_belongs_to_those_who_moved_it_and_rests_if_nobody_did(self):
        deltas, weight, bias = self.deltas(), self.model.slices["fc3.weight"], self.model.slices["fc3.bias"]
        for client in (0, 1):  # each moves the row of its own class alone
            others = torch.arange(3) != client
            deltas[client, weight].view(3, 84)[others] = 0
            deltas[client, bias][others] = 0
        mean = common.mean(self.model, deltas, torch.tensor([3.0, 1.0]))
        rows = mean[weight].view(3, 84)
        for client in (0, 1):
            assert torch.equal(rows[client], deltas[client, weight].view(3, 84)[client])
        assert rows[2].count_nonzero() == 0 and mean[bias][2] == 0

    def test_clients_that_move_the_same_rows_get_the_plain_mean(self):
        deltas, samples = self.deltas(), torch.tensor([3.0, 1.0])
        deltas[1, self.model.head] = 5 * deltas[0, self.model.head]
        plain = averaging.mean(deltas, samples / samples.sum())
        assert torch.allclose(common.mean(self.model, deltas, samples), plain, atol=1e-6)

    def test_whoever_trains_harder_weighs_no_more(self):
        deltas = self.deltas()
        shares, harder = common.row_shares(self.model, deltas), common.row_shares(self.model, 8 * deltas)
        assert torch.allclose(shares.sum(1), torch.ones(2)) and torch.equal(shares, harder)
        assert torch.equal(common.row_shares(self.model, 0 * deltas), torch.zeros(2, 3))

    def test_a_class_that_a_client_lacks_shows_in_what_it_moved(self):
        draw = torch.Generator().manual_seed(1)
        theta = self.model.init(draw)
        images, labels = torch.randn(64, 3, 32, 32, generator=draw), torch.arange(64) % 2
        trained, batches = theta.clone(), list(torch.arange(64).split(16))
        sgd_epoch(
            self.model.trainer(), trained, images, labels, batches=batches, lr=0.01, momentum=0.9,
            prior=own_prior(labels, 3),
        )  # fmt: skip
        assert common.row_shares(self.model, (theta - trained)[None])[0, 2] < 0.1


def test_newcomers_are_served_before_their_first_round(tmp_path, watched):
    """From the common model and their own prior, much better than the untrained network of step 1."""
    ledger = watched(**GOOD).ledger
    told = [[a for a in row if a is not None] for row in ledger.zero_shot]
    assert [len(row) for row in told] == [6, 2, 2]
    assert sum(told[1] + told[2]) / 4 > sum(told[0]) / 6 + 15


def test_nothing_about_labels_is_sent_on_joining_and_the_prior_works(tmp_path):
    federation = Watched(tiny("pfeddsh"), tmp_path)
    method, data = federation.method, federation.bench.shard(0)
    card, _ = method.card(Message(), data, Memory(), federation.bench.visit(1, 0, 0))
    assert not card.tensors and not card.facts and not method.expected_card().tensors
    assert method.prior(data).min() < 0 < method.prior(data).max()


def test_payload_is_the_model_down_and_its_change_up(reference):
    payload = reference("pfeddsh").results["payload_kib"]
    assert (payload["down"], payload["up"]) == (pytest.approx(242.21, abs=0.01), pytest.approx(242.21, abs=0.01))


class TestReplay:
    @pytest.fixture(autouse=True)
    def few_images(self, monkeypatch):
        monkeypatch.setitem(INVERSIONS, "ours", replace(INVERSIONS["ours"], images=40, iterations=3))

    def test_it_changes_the_dense_layers_of_the_offered_version_only(self, tmp_path):
        options = {"replay": "common", "ask": False}
        federation = watch(tiny("pfeddsh", options=options), tmp_path)
        state, method = federation.state, federation.method
        plain = common.blend(state["common/2"], state["trained/3"], 0.25)
        dense = method.model.dense
        assert torch.allclose(plain[: dense.start], state["common/3"][: dense.start], atol=1e-7)
        assert not torch.allclose(plain[dense], state["common/3"][dense], atol=1e-7)
        assert federation.ledger.replay_seconds[1] > 0

    def test_the_control_replays_when_nobody_has_joined(self, tmp_path):
        options = {"replay": "common", "replay_first": True}
        federation = watch(tiny("pfeddsh", schedule="6", options=options), tmp_path)
        assert torch.equal(federation.state["common/1"], federation.state["trained/1"])
        without = watch(tiny("pfeddsh", schedule="6"), tmp_path / "without")
        assert not torch.equal(federation.state["common/1"], without.state["common/1"])


def test_a_state_that_another_form_of_the_method_left_is_refused_and_kept(tmp_path):
    federation = Watched(tiny("pfeddsh"), tmp_path)
    federation.state.tensors = {"b2": federation.state["common"]}
    federation.checkpoints.snapshot((2, 0), federation._parts())
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(UserError, match=r"another version of pfeddsh.*common is missing"):
        Watched(tiny("pfeddsh"), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == before
