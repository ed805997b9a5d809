"""Where launches ran on more than one node: whether these are alike."""

from __future__ import annotations

from autotune.outputs.report import StudyRecord, text, words
from autotune.study.recommendation import NodeShare


def nodes(study: StudyRecord) -> str:
    """A table of the nodes, and a sentence for each that is off beyond noise; empty where there was one."""
    shares = study.recommendation.nodes
    if not shares:
        return ""
    label = words.label(study.recommendation.evidence)
    headings = (
        "Node",
        "Launches",
        f"Baseline: {text.title(study.spec.objective)}",
        "Against the others",
        "Corrected by",
    )
    rows = [
        (
            text.code(share.node),
            str(share.launches),
            text.number(share.baseline),
            text.percent(share.difference_percent),
            text.percent(share.offset_percent),
        )
        for share in shares
    ]
    note = (
        "The baseline ran on every node. A difference beyond noise is corrected in the search. A configuration and the "
        "baseline are compared by launches on the same node, whatever it is like."
    )
    off = [sentence for share in shares if (sentence := _sentence(share))]
    said = "\n".join(off) if off else "No node differs from the others beyond noise."
    return "\n\n".join([f"## Nodes ({label})", note, text.table(headings, rows, " rrrr"), said])


def _sentence(share: NodeShare) -> str:
    if not share.certain:
        return ""
    how = "slower" if share.offset_percent < 0 else "faster"
    return (
        f"- Node {text.code(share.node)} is {abs(share.offset_percent):.0f} % {how} than the others, which noise does "
        "not explain: nothing more was launched there, and scores of its launches are corrected."
    )
