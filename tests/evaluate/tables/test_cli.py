import json
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from byov.evaluate.tasks import TASKS


def row_names(report, protocol="standard"):
    return [row["name"] for row in report["protocols"][protocol]["rows"]]


def test_alone_it_says_what_it_would_do(byov_eval, features_dir, write_run):
    write_run("first")
    code, out, err = byov_eval()
    assert code == 0
    assert "run first" in out
    assert "test split of tea" in out
    assert all(task in out for task in TASKS)
    assert "the only one" in err
    assert not (features_dir.parent / "runs" / "first" / "results.json").exists()


@pytest.mark.usefixtures("features_dir")
def test_a_task_of_the_newest_run(byov_eval, write_run):
    folder = write_run("first")
    code, out, err = byov_eval("--task", "retrieval")
    assert code == 0, err
    assert "tea, test split, standard protocol: Frame retrieval (6 videos, 3 ego and 3 exo" in out
    assert [name in out for name in ("Time only", "Untrained (first)", "first")] == [True] * 3
    assert (folder / "results-retrieval.json").is_file()
    assert not (folder / "results.json").exists()


@pytest.mark.usefixtures("features_dir")
def test_all_stands_beside_the_baselines_under_both_protocols(byov_eval, write_run):
    folder = write_run("first")
    code, out, err = byov_eval("--run", "first", "--task", "all", "--json")
    assert code == 0, err
    report = json.loads(out)
    expected = [
        "Random features (tiny), merged 1.0",
        "Random features (tiny), merged 0.3",
        "CLIP features (vit-base-patch16), cls",
        "CLIP features (vit-base-patch16), merged 0.3",
        "CLIP features (vit-base-patch16), merged 0.3, standardized",
        "Time only",
        "Untrained (first)",
        "first",
    ]
    assert row_names(report) == row_names(report, "trimmed") == expected
    assert report["protocols"]["trimmed"]["videos"] == 12
    assert (report["split"], report["settings"]["ks"], report["settings"]["tau_stride"]) == ("test", [5, 10, 15], 5)
    assert report["versions"].keys() == {"python", "byov", "numpy", "scipy", "scikit-learn"}
    run = report["protocols"]["standard"]["rows"][-1]
    assert len(run["origin"]["model_sha256"]) == 64
    assert run["origin"]["encoder"] == "openai/clip-vit-base-patch16"
    assert json.loads((folder / "results.json").read_text()) == report
    assert "| first |" in (folder / "results.md").read_text()
    assert r"\begin{tabular}{lcccccccc}" in (folder / "results.tex").read_text()
    for text in ((folder / f"results.{suffix}").read_text() for suffix in ("md", "tex")):
        assert "merged 0.3, standardized" in text
        assert "standardized: each dimension with zero mean and unit deviation over the video" in text


@pytest.mark.slow
@pytest.mark.usefixtures("features_dir")
def test_what_runs_were_trained_on_is_standardized_once(byov_eval, write_run):
    for seed, name in enumerate(("a", "b")):
        write_run(name, seed=seed)
    code, out, err = byov_eval("--run", "a", "--run", "b", "--task", "all", "--protocol", "standard", "--json")
    assert code == 0, err
    rows = json.loads(out)["protocols"]["standard"]["rows"]
    (row,) = [row for row in rows if row["origin"].get("standardized")]
    assert (row["kind"], row["origin"]["encoder"]) == ("frozen", "openai/clip-vit-base-patch16")
    assert row["origin"]["column"] == "merged/0.3"
    frozen = next(other for other in rows if row["name"] == f"{other['name']}, standardized")
    assert row["origin"]["features_sha256"] == frozen["origin"]["features_sha256"]
    assert row["scores"]["retrieval"] != frozen["scores"]["retrieval"]


def test_standardized_features_have_no_row_among_actions_of_whole_videos(byov_eval, write_run, features_dir, manifest):
    write_run("first")
    videos = tuple(replace(one, labels=None, actions=(number % 2,)) for number, one in enumerate(manifest.videos))
    actions = replace(manifest, phases=(), actions=("run", "sit"), videos=videos)
    actions.save(features_dir / "tea" / "manifest.json")
    code, out, err = byov_eval("--run", "first", "--task", "all", "--json")
    assert code == 0, err
    names = row_names(json.loads(out))
    assert "CLIP features (vit-base-patch16), merged 0.3" in names
    assert not [name for name in names if "standardized" in name]
    assert "merged/0.3, standardized: left out of the table (the mean of every standardized video is zero" in err


@pytest.mark.usefixtures("features_dir")
def test_what_is_written_of_an_unfinished_run_says_so(byov_eval, write_run):
    folder = write_run("long")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"settings": {"epochs": 5000}}))
    said = "long: unfinished, stopped at epoch 62 of 5000: its model is the best so far"
    files = [folder / f"results-tau{suffix}" for suffix in (".json", ".md", ".tex")]
    (folder / "metrics.jsonl").write_text('{"epoch": 62}\n')
    assert byov_eval("--run", "long", "--task", "tau")[0] == 0
    rows = json.loads(files[0].read_text())["protocols"]["standard"]["rows"]
    assert {row["name"]: row["notes"] for row in rows if row["notes"]} == {"long": [said]}
    assert [said in path.read_text() for path in files] == [True, True, True]
    (folder / "model-last.safetensors").write_bytes(b"")
    assert byov_eval("--run", "long", "--task", "tau")[0] == 0
    assert ["unfinished" in path.read_text() for path in files] == [False, False, False]


@pytest.mark.slow
@pytest.mark.usefixtures("features_dir")
def test_several_runs_give_their_mean(byov_eval, write_run, tmp_path):
    for seed, name in enumerate(("a", "b", "c")):
        write_run(name, seed=seed)
    options = [part for name in ("a", "b", "c") for part in ("--run", name)]
    code, out, err = byov_eval(*options, "--task", "classification", "--out", tmp_path / "results", "--json")
    assert code == 0, err
    report = json.loads(out)
    assert row_names(report) == ["Time only", "Untrained, mean of 3 runs", "a", "b", "c", "Mean of 3 runs"]
    *_, a, b, c, mean = report["protocols"]["standard"]["rows"]
    values = [row["scores"]["classification"]["regular"] for row in (a, b, c)]
    assert mean["scores"]["classification"]["regular"] == pytest.approx(np.mean(values))
    assert mean["details"]["classification/regular"]["deviation"] == pytest.approx(np.std(values, ddof=1))
    assert len(mean["origin"]["runs"]) == 3
    assert "±" in (tmp_path / "results" / "results-classification.md").read_text()


@pytest.mark.slow
@pytest.mark.usefixtures("features_dir")
def test_rows_say_what_they_are_beside_the_name_of_their_run(byov_eval, write_run):
    for seed, name in enumerate(("a", "b")):
        write_run(name, seed=seed, recipe="tcc", title="TCC")
    write_run("c", recipe="ae2-alignment", title="AE2 alignment loss, no object encoder")
    options = [part for name in ("a", "b", "c") for part in ("--run", name)]
    code, out, err = byov_eval(*options, "--task", "tau", "--json")
    assert code == 0, err
    assert [name for name in row_names(json.loads(out)) if "Untrained" not in name] == [
        "Time only",
        "a: TCC (ViT-B/16, frozen)",
        "b: TCC (ViT-B/16, frozen)",
        "Mean of 2 runs: TCC (ViT-B/16, frozen)",
        "c: AE2 alignment loss, no object encoder (ViT-B/16, frozen)",
    ]


@pytest.mark.slow
@pytest.mark.usefixtures("features_dir")
def test_means_of_one_title_and_other_settings_say_of_which_runs_they_are(byov_eval, write_run):
    for name, seed, recipe in (("a", 0, "one"), ("b", 1, "one"), ("c", 0, "other"), ("d", 1, "other")):
        write_run(name, seed=seed, recipe=recipe, title="TCC")
    options = [part for name in ("a", "b", "c", "d") for part in ("--run", name)]
    code, out, err = byov_eval(*options, "--task", "tau", "--json")
    assert code == 0, err
    means = [name for name in row_names(json.loads(out)) if name.startswith("Mean")]
    assert means == ["Mean of a, b: TCC (ViT-B/16, frozen)", "Mean of c, d: TCC (ViT-B/16, frozen)"]


@pytest.mark.slow
@pytest.mark.usefixtures("features_dir")
def test_means_are_of_runs_that_differ_in_their_seed_alone(byov_eval, write_run):
    for name, seed, recipe in (("a", 0, "paper"), ("b", 1, "paper"), ("c", 1, "cycle"), ("d", 2, "cycle")):
        write_run(name, seed=seed, recipe=recipe)
    options = [part for name in ("a", "b", "c", "d") for part in ("--run", name)]
    code, out, err = byov_eval(*options, "--task", "tau", "--json")
    assert code == 0, err
    runs = ["a", "b", "Mean of a, b", "c", "d", "Mean of c, d"]
    assert [name for name in row_names(json.loads(out)) if "Untrained" not in name] == ["Time only", *runs]
    assert "there is no mean over all of them" in err


def test_a_table_says_which_videos_lack_labels(byov_eval, write_run, features_dir, manifest):
    write_run("first")
    one = next(video.id for video in manifest.videos if video.split == "test")
    videos = tuple(replace(video, labels=None) if video.id == one else video for video in manifest.videos)
    replace(manifest, videos=videos).save(features_dir / "tea" / "manifest.json")
    code, out, err = byov_eval("--run", "first", "--task", "all")
    assert code == 0, err
    assert f"1 of 6 scored videos have no phase labels (ego/{one}) and are left out of phase tasks" in out
    assert "2 of 12 scored sub-clips have no phase labels" in out
    assert "training videos have no" not in out
    assert byov_eval("--run", "first", "--task", "retrieval")[0] == 0


def test_two_folders_of_one_encoder_are_two_rows(byov_eval, write_run, features_dir):
    write_run("first")
    shutil.copytree(features_dir / "tea" / "random--tiny", features_dir / "tea" / "random--again")
    code, out, err = byov_eval("--run", "first", "--task", "all", "--json")
    assert code == 0, err
    assert row_names(json.loads(out)).count("Random features (tiny), merged 0.3") == 2


@pytest.mark.usefixtures("features_dir")
def test_one_untrained_model_is_one_row(byov_eval, write_run):
    write_run("a", recipe="paper")
    write_run("b", recipe="cycle")
    code, out, err = byov_eval("--run", "a", "--run", "b", "--task", "tau", "--json")
    assert code == 0, err
    assert row_names(json.loads(out)) == ["Time only", "Untrained (a, b)", "a", "b"]


@pytest.mark.usefixtures("features_dir")
def test_cached_features_without_any_run(byov_eval, tmp_path):
    code, out, err = byov_eval("--features", "cls", "--encoder", "openai/clip-vit-base-patch16", "--task", "all")
    assert code == 0, err
    assert "CLIP features" in out
    assert "trimmed protocol" in out
    assert not list(tmp_path.rglob("results*"))


def test_the_paper_stands_below_the_dataset_that_it_has(byov_eval, features_dir, manifest):
    replace(manifest, dataset="break_eggs").save(features_dir / "break_eggs" / "manifest.json")
    (features_dir / "tea" / "random--tiny").rename(features_dir / "break_eggs" / "random--tiny")
    options = ("--dataset", "break_eggs", "--features", "merged:0.3")
    code, out, err = byov_eval(*options, "--task", "classification", "--protocol", "both")
    assert code == 0, err
    standard, trimmed = out.split("trimmed protocol")
    assert "74.30" in standard
    assert "published in the paper, not measured here" in " ".join(standard.split())
    assert "74.30" not in trimmed
    val = byov_eval(*options, "--task", "classification", "--split", "val")[1]
    assert "74.30" not in val
    assert "val split" in val
    assert "for choosing" in val


@pytest.mark.parametrize(
    ("dataset", "command"),
    [
        ("break_eggs", "byov-extract --dataset break_eggs --encoder random/"),
        ("tea", "byov-extract --manifest FILE or --folder FOLDER, as tea was extracted, with --encoder random/"),
    ],
)
def test_what_extracts_random_features_is_a_command_that_there_is(byov_eval, features_dir, manifest, dataset, command):
    shutil.rmtree(features_dir / "tea" / "random--tiny")
    replace(manifest, dataset=dataset).save(features_dir / "tea" / "manifest.json")
    (features_dir / "tea").rename(features_dir / dataset)
    code, _, err = byov_eval("--task", "all", "--dataset", dataset, "--protocol", "standard")
    assert code == 0, err
    assert f"no row of Random features: {command}clip-vit-base-patch16\n" in err


def test_pour_liquid_is_marked(byov_eval, features_dir, manifest):
    replace(manifest, dataset="pour_liquid").save(features_dir / "pour_liquid" / "manifest.json")
    (features_dir / "tea" / "random--tiny").rename(features_dir / "pour_liquid" / "random--tiny")
    options = ("--dataset", "pour_liquid", "--features", "merged:0.3", "--task", "progression")
    assert "time column" in byov_eval(*options)[1]
    report = json.loads(byov_eval(*options, "--json")[1])
    assert report["protocols"]["standard"]["rows"][0]["scores"]["progression"]["time_column"] is True


@pytest.mark.parametrize(("name", "options"), [("three_phases", ()), ("missing_phase_time_column", ("--time-column",))])
def test_an_npz_gives_the_golden_shape(byov_eval, golden, name, options):
    path = golden / f"{name}.npz"
    code, out, err = byov_eval("--embeddings", path, "--task", "all", "--json", *options)
    assert code == 0, err
    report, expected = json.loads(out), json.loads(str(np.load(path)["expected"]))

    def compare(expected, found):
        for key, value in expected.items():
            if isinstance(value, dict):
                compare(value, found[key])
            else:
                assert found[key] == pytest.approx(value, abs=1e-6), key

    compare(expected, report)
    assert report["time_only"]["kendalls_tau"] > 0.9
    assert report["time_only"].keys() >= {"classification", "retrieval", "progression"}
    assert report["origin"]["file"] == f"{name}.npz"


def test_an_npz_as_a_table_with_intervals(byov_eval, golden, tmp_path):
    path = golden / "three_phases.npz"
    code, out, err = byov_eval("--embeddings", path, "--task", "tau", "--bootstrap", "50", "--out", tmp_path / "here")
    assert code == 0, err
    assert "0.5479" in out
    assert "95% interval over 50 resamplings" in out
    assert "saturates Kendall's tau" in out
    assert (tmp_path / "here" / "results-tau.tex").is_file()


@pytest.mark.usefixtures("features_dir")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--embeddings", "none.npz", "--task", "all"), "none.npz: no such file"),
        (("--embeddings", "none.npz"), "which task? --task classification"),
        (("--embeddings", "none.npz", "--task", "all", "--run", "x"), "--run does not go with --embeddings"),
        (
            ("--embeddings", "none.npz", "--task", "all", "--dataset", "tea"),
            "--dataset does not go with --embeddings: a file of this layout brings its own videos and labels; "
            "--dataset goes with what byov-embed writes",
        ),
        (("--embeddings", "none.npz", "--task", "tau", "--split", "val"), "--split val does not go with --embeddings"),
        (
            ("--embeddings", "none.npz", "--task", "tau", "--protocol", "both"),
            "sub-clips have to be embedded on their own",
        ),
        (("--json",), "which task? --task classification"),
        (("--task", "retrieval"), "no run in runs; make one with byov-train --ratio 0.3"),
        (("--run", "gone", "--task", "tau"), "runs/gone: no such run"),
        (("--task", "tau", "--features", "cls"), "which encoder's features?"),
        (("--task", "tau", "--k", "x"), "--k x: expected whole numbers"),
        (("--task", "actions", "--features", "cls", "--encoder", "openai/clip-vit-base-patch16"), "has no actions"),
        (("--task", "all", "--dataset", "milk"), "holds no dataset 'milk'; it holds tea"),
    ],
)
def test_mistakes_are_told_in_one_line(byov_eval, options, message):
    code, out, err = byov_eval(*options)
    assert code == 2
    assert out == ""
    (line,) = [line for line in err.splitlines() if line.startswith("error: ")]
    assert message in line


@pytest.mark.usefixtures("features_dir")
def test_without_sub_clips_the_trimmed_protocol_is_left_out_unless_asked_for(byov_eval, write_run):
    write_run("first", trimmed=False)
    code, out, err = byov_eval("--task", "all", "--json")
    assert code == 0, err
    assert json.loads(out)["protocols"].keys() == {"standard"}
    assert "without the trimmed protocol" in err
    code, _, err = byov_eval("--task", "tau", "--protocol", "trimmed")
    assert code == 2
    assert "byov-train --run first --embed-only" in err


@pytest.mark.usefixtures("features_dir")
def test_without_its_untrained_model_the_table_goes_on(byov_eval, write_run):
    folder = write_run("first")
    (folder / "embeddings-untrained" / "ego" / "test_ego_0.h5").unlink()
    code, out, err = byov_eval("--task", "tau", "--json")
    assert code == 0
    assert row_names(json.loads(out)) == ["Time only", "first"]
    assert "Untrained (first): left out of the table" in err


def test_videos_that_were_never_extracted_are_told(byov_eval, features_dir, manifest, write_run):
    write_run("first")
    videos = tuple(replace(v, frames=None) if v.id == "test_ego_1" else v for v in manifest.videos)
    replace(manifest, videos=videos).save(features_dir / "tea" / "manifest.json")
    code, out, err = byov_eval("--task", "tau", "--json")
    assert code == 0
    assert json.loads(out)["left_out"] == ["ego/test_ego_1"]
    assert "left out, since never extracted: 1 video (ego/test_ego_1)" in err


def test_help_needs_no_heavy_packages():
    script = (
        "import sys; import byov.cli.evaluate; "
        "print([name for name in ('sklearn', 'scipy', 'torch', 'matplotlib') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
