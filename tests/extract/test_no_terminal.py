"""Tests of extraction as a library function: in threads and other processes, without output."""

import multiprocessing
import signal
import threading
from functools import partial

import huggingface_hub.utils
import pytest
import transformers
from tests.factories import read_files

from byov.extract.encoders import load_encoder
from byov.extract.extraction import extract_features


@pytest.fixture(scope="session")
def encoder_folder(tmp_path_factory, model_folder):
    """Folder of a small model, for which Hugging Face draws a progress bar on loading."""
    return model_folder(tmp_path_factory.mktemp("encoders") / "tiny")


def switches():
    bars = (
        transformers.utils.logging.is_progress_bar_enabled(),
        huggingface_hub.utils.are_progress_bars_disabled(),
    )
    return transformers.logging.get_verbosity(), *bars


@pytest.mark.slow
def test_extraction_runs_in_threads_and_processes_without_output(
    make_dataset, encoder_folder, tmp_path, capfd
):
    options = {"encoder": str(encoder_folder), "ratios": (0.3,), "device": "cpu"}
    extract = partial(extract_features, manifest=make_dataset([3, 2]), **options)
    folders = [tmp_path / name for name in "abc"]
    before = switches(), {number: signal.getsignal(number) for number in signal.valid_signals()}
    capfd.readouterr()
    outcomes = []
    for folder in folders[:2]:
        thread = threading.Thread(
            target=lambda folder=folder: outcomes.append(extract(features_dir=folder))
        )
        thread.start()
        thread.join()
    process = multiprocessing.get_context("spawn").Process(
        target=extract, kwargs={"features_dir": folders[2]}
    )
    process.start()
    process.join()
    assert capfd.readouterr() == ("", "")
    assert [(outcome.videos, outcome.failures) for outcome in outcomes] == [(2, {}), (2, {})]
    assert process.exitcode == 0
    assert (
        switches(),
        {number: signal.getsignal(number) for number in signal.valid_signals()},
    ) == before
    first, *others = map(read_files, folders)
    assert others == [first, first]


def test_disabled_hugging_face_bars_stay_disabled(encoder_folder, capfd):
    transformers.utils.logging.disable_progress_bar()
    try:
        before = switches()
        load_encoder(str(encoder_folder), device="cpu")
        assert switches() == before
    finally:
        transformers.utils.logging.enable_progress_bar()
    assert capfd.readouterr() == ("", "")
