"""Verdicts on runs whose truth is known: what is regressed, what passes, and what can't be told."""

from __future__ import annotations

import datetime
from collections.abc import Sequence

import numpy as np
import pytest
from msgspec.structs import replace

from steptime.gate.accepted import Accepted
from steptime.gate.judge import Question, judge
from steptime.gate.limits import find_name, parse_limit
from steptime.gate.runs import Run
from steptime.gate.settings import Settings
from steptime.model import Finding
from steptime.model.gate import Verdict
from tests.gate.runs import MS, drawn, report_of, run

TODAY = datetime.date(2026, 12, 1)
LOADER, MATMUL = "host/data_loader", "kernels/matmul"


def of(
    candidate: Sequence[Run],
    baseline: Sequence[Run],
    settings: Settings = Settings(),  # noqa: B008 - frozen
    accepted: Sequence[Accepted] = (),
) -> Verdict:
    return judge(Question(candidate, baseline, [], accepted, TODAY), settings)


def runs(levels_ms: Sequence[float], loader_ms: float = 0.0, steps: int = 12) -> list[Run]:
    """One run for each level, all steps alike; `loader_ms` of each step are the loader's."""
    return [
        Run(f"run at {level}", report_of([_step(level - loader_ms, loader_ms) for _ in range(steps)]))
        for level in levels_ms
    ]


def _step(matmul_ms: float, loader_ms: float) -> dict[str, int]:
    found = {MATMUL: round(matmul_ms * MS), LOADER: round(loader_ms * MS)}
    return {leaf: ns for leaf, ns in found.items() if ns}


def budgets(*pairs: tuple[str, str]) -> Settings:
    rows = ((find_name(name, ["loader-in-process"], ""), parse_limit(text, "")) for name, text in pairs)
    return Settings(budgets=tuple(rows))


BASE = (100.0, 101.0, 99.0)


def test_the_same_job_passes_and_says_what_it_would_have_caught() -> None:
    verdict = of(runs((100.5, 99.5, 100.2)), runs(BASE))
    assert (verdict.status, verdict.exit_code) == ("pass", 0)
    assert "would have been caught" in verdict.reason
    assert verdict.degrees == 4


def test_ten_percent_is_regressed_with_its_interval() -> None:
    verdict = of(runs((110.0, 111.0, 109.0)), runs(BASE))
    assert (verdict.status, verdict.exit_code) == ("regressed", 1)
    step = verdict.judged[0]
    assert step.change == pytest.approx(0.10, abs=1e-3)
    assert step.low is not None
    assert step.low > 0.05


def test_a_faster_job_passes_however_little_could_be_seen() -> None:
    noisy = [run(100e6 * np.array([1.0, 2.0] * 6)), run(45e6 * np.ones(12))]
    verdict = of([noisy[1]], [noisy[0]])
    assert verdict.judged[0].detectable is not None
    assert verdict.judged[0].detectable > 0.25
    assert verdict.status == "pass"


def test_probably_slower_is_cannot_tell() -> None:
    # By hand: means 103 and 100, sd 2, error 2 * sqrt(2 / 3) = 1.63, t = 1.84 at 4 degrees: 5 to 10 %.
    verdict = of(runs((101.0, 103.0, 105.0)), runs((98.0, 100.0, 102.0)))
    assert (verdict.status, verdict.exit_code) == ("cannot tell", 2)
    assert "probably slower" in verdict.reason
    assert verdict.remedy is not None


def test_what_could_not_have_been_seen_is_not_passed() -> None:
    verdict = of(runs((80.0, 100.0, 120.0)), runs((80.0, 100.0, 120.0)))
    assert verdict.status == "cannot tell"
    assert "only a regression of" in verdict.reason
    assert of(runs((80.0, 100.0, 120.0)), runs((80.0, 100.0, 120.0)), Settings(detect=2.0)).status == "pass"


def test_the_limit_of_the_user_is_a_threshold_after_the_statistics() -> None:
    slower = runs((102.0, 102.1, 101.9)), runs((100.0, 100.1, 99.9))
    assert of(*slower).status == "regressed"
    within = of(*slower, Settings(max_step_time=0.05))
    assert within.status == "pass"
    assert "within the limit" in within.reason
    # Over the user's limit, but no more than the runs differ.
    unsure = of(runs((101.0, 104.0, 103.0)), runs((97.0, 101.0, 105.0)), Settings(max_step_time=0.01))
    assert unsure.status == "cannot tell"
    assert "not for certain" in unsure.reason


def test_less_than_half_a_percent_is_let_through() -> None:
    verdict = of(runs((100.3, 100.3001, 100.2999)), runs((100.0, 100.0001, 99.9999)))
    assert verdict.judged[0].low is not None
    assert verdict.judged[0].low > 0
    assert verdict.status == "pass"


def test_one_outlier_step_in_ten_changes_nothing() -> None:
    steps = np.full(20, 100.0e6)
    hurt = steps.copy()
    hurt[[4, 15]] *= 5
    sides = [run(steps * factor) for factor in (1.0, 1.01, 0.99)], [run(hurt * factor) for factor in (1.0, 1.01, 0.99)]
    changes = [judged.change for judged in (of(*sides).judged[0], of(sides[1], sides[0]).judged[0])]
    assert changes == pytest.approx([0.0, 0.0], abs=1e-9)


def test_every_fourth_step_slow_is_never_a_silent_pass() -> None:
    """A stall in every fourth step leaves the usual step alone and costs a quarter of the time."""
    steps = np.full(24, 100.0e6)
    stalled = steps.copy()
    stalled[::4] *= 2.0
    one = of([run(stalled)], [run(steps)])
    assert one.status != "pass"
    several = of([run(stalled * f) for f in (1.0, 1.01, 0.99)], [run(steps * f) for f in (1.0, 1.01, 0.99)])
    assert several.status == "regressed"
    assert several.reason.startswith("slow steps: they add +25.0 %")


def test_one_run_against_one_rests_on_an_assumed_spread() -> None:
    verdict = of(runs((103.0,)), runs((100.0,)))
    assert (verdict.status, verdict.degrees) == ("pass", None)
    assert verdict.run_sd == pytest.approx(0.03)
    assert of(runs((115.0,)), runs((100.0,))).status == "regressed"


def test_ranks_count_once() -> None:
    """Eight ranks that wait for each other are one job: the same figures as one rank's, not eight times as sure."""
    rng = np.random.default_rng(3)
    alone = [drawn(rng, 3, 0.01, 20), drawn(rng, 3, 0.01, 20)]
    together = [[Run(one.name, _on_ranks(one, 8)) for one in side] for side in alone]
    assert of(together[0], together[1]).judged[0] == of(alone[0], alone[1]).judged[0]


def _on_ranks(one: Run, ranks: int):  # type: ignore[no-untyped-def]
    copies = [replace(one.report.ranks[0], rank=rank) for rank in range(ranks)]
    return replace(one.report, ranks=copies)


def test_budgets_of_slices_leaves_and_findings() -> None:
    before, after = runs(BASE, loader_ms=5.0), runs((104.5, 105.5, 103.5), loader_ms=9.5)
    verdict = of(after, before, budgets((LOADER, "+10%"), ("host", "8ms"), ("kernels", "+1%"), ("host", "20%")))
    rows = {(row.name, row.limit): row for row in verdict.judged}
    assert rows[LOADER, "+10%"].status == "regressed"
    assert rows[LOADER, "+10%"].change == pytest.approx(4.5 * MS)
    assert rows["host", "8ms"].status == "regressed"
    assert rows["kernels", "+1%"].status == "pass"
    assert rows["host", "20%"].status == "pass"
    assert rows["host", "20%"].candidate == pytest.approx(9.5 / 104.5, rel=1e-3)


def test_growth_of_next_to_nothing_is_nothing() -> None:
    before, after = runs(BASE, loader_ms=0.001), runs(BASE, loader_ms=0.002)
    assert of(after, before, budgets((LOADER, "+10%"))).status == "pass"


def test_a_finding_has_a_budget_or_can_t_be_told() -> None:
    fields = {"slice": "host", "title": "", "confidence": "high", "advice": "", "share": None}
    found = Finding(id="loader-in-process", cost_ns=12 * 30 * MS, **fields)  # type: ignore[arg-type]
    after = [replace_report(one, findings=[found]) for one in runs(BASE)]
    limit = budgets(("loader-in-process", "10ms"))
    assert of(after, runs(BASE), limit).judged[2].candidate == 30 * MS
    assert of(after, runs(BASE), limit).status == "regressed"
    assert of(runs(BASE), runs(BASE), limit).status == "pass"
    unknown = [replace_report(one, not_evaluated={"loader-in-process": "no loader events"}) for one in runs(BASE)]
    verdict = of(unknown, runs(BASE), limit)
    assert (verdict.status, verdict.reason.endswith("no loader events")) == ("cannot tell", True)


def test_the_least_mfu() -> None:
    high = [replace_job(one, mfu=0.41) for one in runs(BASE)]
    low = [replace_job(one, mfu=0.30 + 0.001 * at) for at, one in enumerate(runs(BASE))]
    assert of(high, high, Settings(min_mfu=0.38)).status == "pass"
    assert of(low, high, Settings(min_mfu=0.38)).status == "regressed"
    verdict = of(runs(BASE), high, Settings(min_mfu=0.38))
    assert verdict.status == "cannot tell"
    assert "MFU is not known" in verdict.reason


def replace_report(one: Run, **changes: object) -> Run:
    return Run(one.name, replace(one.report, **changes))


def replace_job(one: Run, **changes: object) -> Run:
    return Run(one.name, replace(one.report, job=replace(one.report.job, **changes)))


def accepted(ms: float, until: datetime.date = TODAY, baseline_ms: float = 0.0) -> Accepted:
    return Accepted(
        name=LOADER,
        why="augmentation on the host until 3.2",
        on=TODAY,
        until=until,
        leaves={LOADER: round(ms * MS)},
        baseline={LOADER: round(baseline_ms * MS)},
    )


def test_what_is_accepted_passes_until_it_ends_and_no_more_than_that() -> None:
    before = runs(BASE)
    after = runs((110.0, 111.0, 109.0), loader_ms=10.0)
    assert of(after, before).status == "regressed"
    let_through = of(after, before, accepted=[accepted(10.0)])
    assert let_through.status == "pass"
    assert "augmentation on the host" in let_through.accepted[0]
    assert let_through.judged[0].change == pytest.approx(0.0, abs=1e-6)
    over = of(after, before, accepted=[accepted(10.0, until=TODAY - datetime.timedelta(days=1))])
    assert over.status == "regressed"
    assert "ended on 2026-11-30" in over.accepted[0]
    # 10 ms are accepted (12.5 with the margin), 30 have come.
    worse = runs((130.0, 131.0, 129.0), loader_ms=30.0)
    assert of(worse, before, accepted=[accepted(10.0)]).status == "regressed"
    # Another leaf is not accepted with it.
    assert of(runs((110.0, 111.0, 109.0)), before, accepted=[accepted(10.0)]).status == "regressed"


def test_an_acceptance_is_spent_once_the_baseline_holds_it() -> None:
    before = runs((110.0, 111.0, 109.0), loader_ms=10.0)
    after = runs((120.0, 121.0, 119.0), loader_ms=20.0)
    verdict = of(after, before, accepted=[accepted(10.0)])
    assert verdict.status == "regressed"
    assert "the baseline holds it" in verdict.accepted[0]


def test_an_accepted_leaf_may_go_over_its_budget_by_as_much() -> None:
    before, after = runs(BASE, loader_ms=5.0), runs((110.0, 111.0, 109.0), loader_ms=15.0)
    asked = budgets((LOADER, "+10%"))
    assert of(after, before, asked).status == "regressed"
    assert of(after, before, asked, [accepted(10.0, baseline_ms=5.0)]).status == "pass"


def test_what_moved_is_listed_by_what_it_cost() -> None:
    verdict = of(runs((110.0,), loader_ms=12.0), runs((100.0,), loader_ms=1.0))
    names = [(row.name, row.change_ns) for row in verdict.moved]
    assert names[:2] == [("host", 11 * MS), (LOADER, 11 * MS)]
    assert ("kernels", -1 * MS) in names
