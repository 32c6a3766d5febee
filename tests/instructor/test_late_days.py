"""What lateness costs."""

import pytest
from traitlets.config import Config

from grading.late_days import DAY, LateDays


@pytest.mark.parametrize(("late", "penalty"), [(60, 8.0), (DAY, 8.0), (DAY + 1, 16.0), (30 * DAY, 80.0)])
def test_each_day_begun_takes_its_share(late: float, penalty: float) -> None:
    plugin = LateDays(config=Config({"LateDays": {"per_day": 0.1}}))
    assert plugin.late_submission_penalty("ada", 80.0, late) == pytest.approx(penalty)


def test_without_a_share_it_is_nbgraders_own() -> None:
    assert LateDays().late_submission_penalty("ada", 80.0, DAY) is None
    strict = LateDays(config=Config({"LateDays": {"penalty_method": "zero"}}))
    assert strict.late_submission_penalty("ada", 80.0, DAY) == 80.0
