"""The neutral stream: every sample of a run, in one order, one trajectory in memory at a time.

    for sample in samples(Path("runs/mine"), options_of(rows="turn")):
        ...

The order is that of the tasks in the run, then index, chain and turn. What is left out is counted
by reason, never dropped in silence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from rock.rollout.export.cut import Episode, samples_of
from rock.rollout.export.float_streams import FloatStream, spread
from rock.rollout.export.options import ALL, ExportOptions
from rock.rollout.export.sample import Sample
from rock.rollout.export.source import NOT_IN_LOSS, PENDING, Group, Run, open_run


class Reader:
    """Reads the samples of single groups. `left_out` counts what was not taken, by reason."""

    def __init__(self, run: Run, options: ExportOptions, *, messages: bool) -> None:
        self.run = run
        self.options = options
        self.left_out: Counter[str] = Counter()
        self._messages = messages
        self._streams = {name: FloatStream(run.path, name) for name in options.streams}

    def wanted(self) -> list[Group]:
        """The groups to export, in order."""
        if self.options.partial_groups:
            return [group for group in self.run.groups if group.state.done]
        return [group for group in self.run.groups if group.state.complete]

    def group(self, group: Group) -> Iterator[Sample]:
        """Raises `LedgerError` for a record or trajectory that cannot be read."""
        info, records = self.run.members(group)
        if info.size > len(records):
            self.left_out[f"episode {PENDING}"] += info.size - len(records)
        for record in records:
            if self.options.only_in_loss and not record.outcome.in_loss:
                self.left_out[f"episode {NOT_IN_LOSS}{record.outcome.cls}"] += 1
                continue
            trajectory = self.run.trajectory(record)
            if trajectory is None:
                self.left_out["episode without a trajectory"] += 1
                continue
            episode = Episode(info, record, trajectory)
            for sample in samples_of(episode, self.options, self.left_out, messages=self._messages):
                yield self._with_streams(sample)

    def _with_streams(self, sample: Sample) -> Sample:
        if not self._streams:
            return sample
        return replace(
            sample,
            streams={
                name: spread(stream.lines(sample.session_id), sample.owned, len(sample.token_ids))
                for name, stream in self._streams.items()
            },
        )


def samples(
    run: Path, options: ExportOptions | None = None, *, left_out: Counter[str] | None = None
) -> Iterator[Sample]:
    """All samples of the run in `run`. `left_out` collects the counts of what is not among them."""
    chosen = options or ExportOptions()
    reader = Reader(open_run(run), chosen, messages=chosen.messages)
    if left_out is not None:
        reader.left_out = left_out
    for group in reader.wanted():
        yield from reader.group(group)


def samples_of_episode(run: Path, task_id: str, index: int) -> list[Sample] | None:
    """Every chain of one finished episode, with its conversation, whatever its outcome.

    None when there is no such episode, or it ended before it had a trajectory.
    """
    source = open_run(run)
    for group in source.groups:
        if group.state.plan.task_id != task_id:
            continue
        info, records = source.members(group)
        for record in records:
            trajectory = source.trajectory(record) if record.index == index else None
            if trajectory is not None:
                episode = Episode(info, record, trajectory)
                return list(
                    samples_of(episode, ExportOptions(chains=(ALL,)), Counter(), messages=True)
                )
    return None
