"""How an experiment greets a person in MLflow's pages: a saved view with the objective, and a description.

MLflow has no setting for the columns that a list of runs begins with. Since 3.15 it has saved views (menu *Views*
above the list; https://mlflow.org/releases/3.15.0): an experiment's tag each, with filter, order and columns.
"""

from __future__ import annotations

import json

from autotune.search.objective import maximises

DESCRIPTION = "mlflow.note.content"

_VIEW = "mlflow.sharedViewState."


def view_id(objective: str) -> str:
    """Names a view in addresses: ``…/runs?viewStateShareKey=…``."""
    return f"autotune-{objective}"


def view_tag(objective: str) -> str:
    """The experiment's tag that holds the view."""
    return f"{_VIEW}{view_id(objective)}"


def view(objective: str, at_ms: int) -> str:
    """The value of `view_tag`: the launches that ran, the best one first, with what they reached.

    Args:
        at_ms: when it is made, milliseconds since 1970.
    """
    metric = f"metrics.`{objective}`"
    columns = [metric, *(f"tags.`{name}`" for name in ("study", "engine", "role", "evidence"))]
    state = {
        "searchFilter": "tags.kind = 'launch' and tags.state = 'complete'",
        "orderByKey": metric,
        "orderByAsc": not maximises(objective),
        "selectedColumns": columns,
        "columnOrder": columns,
    }
    return json.dumps({"name": f"{objective}, best first", "createdAt": at_ms, "state": json.dumps(state)})


def description(experiment_id: str, objective: str) -> str:
    """Markdown above the list of runs."""
    link = f"#/experiments/{experiment_id}/runs?viewStateShareKey={view_id(objective)}"
    # The page shows the first line; the rest unfolds.
    return (
        f"[Launches by {objective}, best first]({link}): this view is in the menu *Views*, too. By hand: *Sort*, then "
        "the objective's name, which also adds its column.\n\n"
        "Serving configurations tried by autotune: a run per study, and below it one per launch.\n"
    )
