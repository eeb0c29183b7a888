"""Why buffers are live at the peak, for the scripts of a page: the facts of `views/why.py`, each stored once.

Buffers share facts, for example an operation that several of them wait for. Each buffer is a short list of fact
numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from memprof.analysis.records.report import Report
from memprof.reports.document import Cell
from memprof.reports.json.types import Json
from memprof.reports.views.why import Labelled, order_facts, order_note, why_facts


def why_data(report: Report, names: Mapping[str, str], number: Callable[[str], int]) -> dict[str, Json]:
    """Build the JSON object, in which texts are represented by numbers.

    A fact is a label with values; a value is a text, or a pair of a text and its link.

    Args:
        report: the facts.
        names: the displayed names of source lines, by source line.
        number: a function that returns the number of a text.
    """
    reasons = report.reasons
    if not reasons or report.schedule is None:
        return {}
    facts: dict[Labelled, int] = {}
    of: list[Json] = [[facts.setdefault(fact, len(facts)) for fact in why_facts(why, names)] for why in reasons]
    order: list[Json] = [facts.setdefault(fact, len(facts)) for fact in order_facts(report, report.schedule)]

    def value(cell: Cell) -> Json:
        return [number(cell.text), number(cell.link)] if cell.link else number(cell.text)

    more = f"Of the {len(reasons):,} largest it says here why they are live; of others: memprof show CAPTURE --why NAME"
    return {
        "facts": [[number(label), *map(value, cells)] for label, cells in facts],
        "of": of,
        "order": order,
        "note": number(order_note(report, report.schedule).text),
        "more": number(more),
    }
