"""The token side of `rock show`: each chain's spans with ids, mask, versions and log-probabilities."""

from __future__ import annotations

import statistics

from rich.console import Console
from rich.markup import escape

from rock.rollout.export.sample import Sample, SampleSpan

IDS_SHOWN = 48


def chain_name(sample: Sample) -> str:
    """Class, and why it is a chain of its own."""
    return sample.chain_class + (f", {sample.branch}" if sample.branch else "")


def print_chain(console: Console, sample: Sample) -> None:
    """One line on a chain as a whole."""
    reward = "none" if sample.reward is None else f"{sample.reward:g}"
    console.print(
        f"chain [bold]{escape(sample.chain)}[/] ({escape(chain_name(sample))}): "
        f"{len(sample.token_ids)} tokens, {sample.mask.count(1)} sampled in {sample.turns} answers, "
        f"policy versions {sample.versions}, reward {reward}, {sample.ending}, "
        f"sum of log-probs {sum(sample.logprobs):.3f}"
    )


def print_tokens(console: Console, sample: Sample) -> None:
    """The spans of a chain; sampled ids are green."""
    print_chain(console, sample)
    for span in sample.spans:
        ids = sample.token_ids[span.start : span.end]
        shown = " ".join(map(str, ids[:IDS_SHOWN]))
        more = f" … ({len(ids)} ids)" if len(ids) > IDS_SHOWN else ""
        colour = "green" if span.kind == "sampled" else "dim"
        console.print(f"  {span.start:>6}:{span.end:<6} {_describe(sample, span)}")
        console.print(f"                [{colour}]{shown}{more}[/]")


def _describe(sample: Sample, span: SampleSpan) -> str:
    roles = escape(", ".join(role or "?" for role in span.roles) or "?")
    calls = f", tool calls {escape(', '.join(span.tool_call_ids))}" if span.tool_call_ids else ""
    if span.kind == "prompt":
        return f"prompt   mask 0  {roles}{calls}"
    mean = statistics.fmean(sample.logprobs[span.start : span.end])
    return (
        f"[bold]sampled[/]  mask 1  {span.part or roles}{calls}, version {span.policy_version}, "
        f"mean log-prob {mean:.3f}, {span.finish_reason}"
    )
