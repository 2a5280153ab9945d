"""A row that is not exactly what was sampled is not exported, and the reason is counted."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from rock.modelservice.wire import Span, Trajectory
from rock.rollout.export import samples
from rock.testing.made_run import MadeEpisode, MadeGroup, write_run
from tests.rollout.export.sessions import one_chain, solved


def longer_mask(t: Trajectory) -> None:
    t.rows[0].mask.append(0)


def masked_prompt(t: Trajectory) -> None:
    t.rows[0].mask[0] = 1


def unmasked_answer(t: Trajectory) -> None:
    t.rows[0].mask[-1] = 0


def negative_id(t: Trajectory) -> None:
    t.rows[0].token_ids[0] = -1


def positive_logprob(t: Trajectory) -> None:
    t.rows[0].logprobs[-1] = 0.5


def logprob_on_prompt(t: Trajectory) -> None:
    t.rows[0].logprobs[0] = -0.5


def other_id(t: Trajectory) -> None:
    t.rows[0].token_ids[-1] += 1


def other_logprob(t: Trajectory) -> None:
    t.rows[0].logprobs[-1] *= 2


def gap(t: Trajectory) -> None:
    span = t.rows[0].spans.pop(0)
    t.rows[0].spans.insert(0, Span(start=1, end=span.end, kind="prompt", call_id=span.call_id))


def rest_without_a_span(t: Trajectory) -> None:
    t.rows[0].spans.pop()


def twice(t: Trajectory) -> None:
    t.rows.append(t.rows[0])


def unknown_answer(t: Trajectory) -> None:
    t.calls[0].choices.clear()


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (longer_mask, "lists of different lengths"),
        (masked_prompt, "a mask that does not follow the spans"),
        (unmasked_answer, "a mask that does not follow the spans"),
        (negative_id, "token_ids outside 0..2147483647"),
        (positive_logprob, "log-probabilities that are not finite and at most 0"),
        (logprob_on_prompt, "log-probabilities where nothing was sampled"),
        (other_id, "token ids that differ from the call's"),
        (other_logprob, "log-probabilities that differ from the call's"),
        (gap, "spans that do not cover the row"),
        (rest_without_a_span, "spans that do not cover the row"),
        (twice, "an answer that another row owns, too"),
        (unknown_answer, "an answer that no call has"),
    ],
)
def test_a_wrong_row_is_left_out(
    tmp_path: Path, spoil: Callable[[Trajectory], None], reason: str
) -> None:
    good, bad = one_chain("good", "a", "b"), one_chain("bad", "a", "b")
    spoil(bad)
    episodes = [MadeEpisode(solved(), good), MadeEpisode(solved(), bad)]
    write_run(tmp_path / "run", [MadeGroup("t", episodes)])
    left_out = Counter[str]()
    found = list(samples(tmp_path / "run", left_out=left_out))
    assert [s.session_id for s in found if s.index == 0] == ["good"]
    assert left_out == {f"invalid: {reason}": 1}
    assert len(found) == (2 if spoil is twice else 1)


def test_a_log_probability_that_no_json_holds_is_refused_by_the_reader(tmp_path: Path) -> None:
    write_run(tmp_path / "run", [MadeGroup("t", [MadeEpisode(solved(), one_chain("s", "a"))])])
    (path,) = (tmp_path / "run").rglob("trajectory.json")
    fields = json.loads(path.read_text())
    fields["rows"][0]["logprobs"][-1] = None
    path.write_text(json.dumps(fields))
    with pytest.raises(Exception, match=r"rows\[0\].logprobs"):
        list(samples(tmp_path / "run"))
