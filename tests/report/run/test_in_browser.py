"""What byov-report has written of a real run, opened in a real browser."""

import pytest


@pytest.mark.slow
def test_the_report_of_a_run_opens_in_silence_and_moves(project, byov_report, open_file):
    assert byov_report(project).code == 0
    tab = open_file(project.run / "report.html")
    assert tab.messages() == []
    assert tab.requests() == [tab.url]
    assert tab.value("document.querySelectorAll('.unavailable:not([hidden]), .missing').length") == 0
    assert tab.value("[...document.images].every(image => image.complete && image.naturalWidth > 0)")
    before = [tab.text(f"#{side}-time") for side in ("query", "run-0")]
    tab.value("document.getElementById('scrub').focus()")
    tab.press("End")
    after = [tab.text(f"#{side}-time") for side in ("query", "run-0")]
    assert all(one != other for one, other in zip(before, after, strict=True))
    assert tab.value("document.querySelectorAll('.cloud .points > *').length") > 0
    x, y = tab.center(".cloud .points > *")
    tab.mouse("mouseMoved", x, y)
    assert tab.value("getComputedStyle(document.querySelector('#card-tile')).backgroundImage").startswith("url(")
