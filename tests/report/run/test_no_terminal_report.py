"""The report as a library: in threads, in other processes, without a word."""

import multiprocessing
import signal
import threading

import pytest

from byov.report.collect import collect
from byov.report.page.html_page import render
from byov.report.paper.figures import write_figures


@pytest.mark.slow
def test_a_report_is_made_in_threads_and_processes_and_says_nothing(whole_project, content, tmp_path, capfd):
    request = whole_project.request()
    before = {number: signal.getsignal(number) for number in signal.valid_signals()}
    capfd.readouterr()
    pages = []

    def make() -> None:
        pages.append(render(collect(request)))

    for work in (make, make, lambda: write_figures(content, tmp_path / "figures")):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    process = multiprocessing.get_context("spawn").Process(target=collect, args=(request,))
    process.start()
    process.join()
    assert capfd.readouterr() == ("", "")
    assert process.exitcode == 0
    assert pages == [render(content)] * 2
    assert (tmp_path / "figures" / "tsne.pdf").is_file()
    assert {number: signal.getsignal(number) for number in signal.valid_signals()} == before
