"""Compare every part of a report with a naive computation, and test incomplete datasets."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import kendalltau
from tests.factories import make_training
from tests.report.conftest import gray_of

from byov.cache.hdf5 import read_array
from byov.cache.manifest import Manifest, VideoEntry
from byov.cache.runs import RunRecord, read_run
from byov.cli.train import main as train_main
from byov.data.own_videos import read_own_videos
from byov.errors import CacheError, EvaluationError
from byov.evaluate.compare import score
from byov.evaluate.protocols import Segment
from byov.evaluate.readers import RunEmbeddings
from byov.evaluate.scope import choose_scope
from byov.report.collect import collect, page_budget, read_curves
from byov.report.content import Curve
from byov.report.examples import limit_videos, tsne
from byov.report.provenance import events_text, facts
from byov.train.progress import aligned_progress

TRAIN = ("train_ego_0", "train_ego_1", "train_exo_0", "train_exo_1")


@pytest.fixture(scope="module")
def embeddings(shared_project, collected):
    """Embeddings of each shown video, read from the files."""
    return [
        read_array(shared_project.run / "embeddings" / f"{video.name}.h5", "embedding").astype(
            np.float64
        )
        for video in collected.videos
    ]


def naive_tau(query, candidate):
    nearest = ((query[::5, None] - candidate[None, ::5]) ** 2).sum(axis=2).argmin(axis=1)
    return (
        np.nan
        if len(set(nearest.tolist())) < 2
        else kendalltau(np.arange(len(nearest)), nearest).statistic
    )


def test_every_part_is_present(collected, shared_project):
    assert collected.missing == {}
    assert (collected.run, collected.dataset, collected.split) == ("first", "tea", "test")
    assert collected.phases == ("phase 0", "phase 1", "phase 2")
    assert str(shared_project.root) not in repr(collected)
    entries = {
        f"{video.view}/{video.id}": video
        for video in shared_project.manifest().videos
        if video.split == "test"
    }
    assert {video.name for video in collected.videos} == entries.keys()
    for video in collected.videos:
        assert (video.frames, video.labels) == (
            entries[video.name].frames,
            entries[video.name].labels,
        )
        np.testing.assert_allclose(video.pts_seconds, np.arange(video.frames) / 10, atol=1e-6)


def test_tables_are_those_of_the_evaluator(collected, shared_project):
    titles = [table.title for table in collected.tables]
    assert any("standard protocol" in title for title in titles)
    assert any("trimmed protocol" in title for title in titles)
    rows = {row.name: cells for row, cells in collected.tables[0].measured}
    assert {"Time only", "Untrained (first)", collected.own_row} <= rows.keys()
    reader = RunEmbeddings(shared_project.runs_dir, shared_project.features_dir, "first")
    scored = score(reader, choose_scope(reader.manifest, ["tau"]))["standard"]
    column = [column.score for column in collected.tables[0].columns].index("kendalls_tau/all")
    assert rows[collected.own_row][column].text == f"{scored.value('kendalls_tau/all'):.4f}"


def test_strips_retrieve_the_nearest_frame_of_each_video(collected, embeddings):
    views = [video.view for video in collected.videos]
    assert [views[strip[0].video] for strip in collected.strips] == ["ego"] * 3 + ["exo"] * 3
    for strip in collected.strips:
        query = embeddings[strip[0].video][strip[0].frame]
        found = []
        for other in (index for index, view in enumerate(views) if view != views[strip[0].video]):
            distances = np.sqrt(((embeddings[other] - query) ** 2).sum(axis=1))
            found.append((distances.min(), other, distances.argmin()))
        expected = [(other, frame) for _, other, frame in sorted(found)[:5]]
        assert [(ref.video, ref.frame) for ref in strip[1:]] == expected


def test_vectors_are_the_embeddings_of_the_samples(collected, embeddings):
    (run,) = collected.vectors
    assert run.name == "first"
    for index, (video, rows) in enumerate(zip(collected.videos, run.embeddings, strict=True)):
        assert video.samples == tuple(range(video.frames))  # all videos are short
        np.testing.assert_array_equal(rows, embeddings[index])
        for other in range(len(embeddings)):
            expected = np.nan if other == index else naive_tau(embeddings[index], embeddings[other])
            assert run.taus[index, other] == pytest.approx(expected, nan_ok=True)


def test_worst_videos_have_the_lowest_tau(collected, embeddings):
    failures = collected.failures
    taus = collected.vectors[0].taus
    pairs = {index: np.concatenate([taus[index], taus[:, index]]) for index in range(len(taus))}
    means = {index: np.nanmean(each) for index, each in pairs.items() if not np.isnan(each).all()}
    assert [worst.video for worst in failures.worst] == sorted(
        means, key=lambda index: means[index]
    )[:3]
    for worst in failures.worst:
        assert worst.tau == pytest.approx(means[worst.video])
        assert worst.partner_tau == pytest.approx(np.nanmin(taus[worst.video]))
        assert worst.partner_tau == pytest.approx(taus[worst.video, worst.partner])
        for query, match in worst.pairs:
            distances = np.linalg.norm(
                embeddings[worst.video][query.frame] - embeddings[worst.partner], axis=1
            )
            assert (query.video, match) == (worst.video, (worst.partner, distances.argmin()))
    reference = failures.reference
    assert (reference.video, reference.frame) == (
        failures.worst[0].video,
        len(embeddings[reference.video]) // 2,
    )
    z = embeddings[reference.video]
    scores = np.exp(z @ z[reference.frame] / np.sqrt(z.shape[1]))
    np.testing.assert_allclose(failures.similarity, scores / scores.sum(), rtol=1e-6)


def test_projection_of_frozen_untrained_and_trained(collected, shared_project):
    projection = collected.projection
    assert len(projection.frames) == sum(video.frames for video in collected.videos)
    names = [collected.videos[ref.video].name for ref in projection.frames]
    features = shared_project.features_dir / "tea" / "random--tiny"
    run = shared_project.run
    folders = {
        "Frozen: Random features (tiny), merged 0.3": (features, "merged/0.3"),
        "Untrained": (run / "embeddings-untrained", "embedding"),
        "Trained: first": (run / "embeddings", "embedding"),
    }
    assert [title for title, _ in projection.maps] == list(folders)
    for title, points in projection.maps:
        folder, column = folders[title]
        videos = {name: read_array(folder / f"{name}.h5", column) for name in names}
        rows = [videos[name][ref.frame] for name, ref in zip(names, projection.frames, strict=True)]
        np.testing.assert_allclose(points, tsne(np.array(rows, np.float32), 0))


def test_more_videos_get_fewer_and_smaller_frames():
    lengths = {count: np.full(count, 300) for count in (8, 60, 120, 1000)}
    budgets = {count: page_budget(each, 256, 40, 15_000_000) for count, each in lengths.items()}
    assert budgets[8][:3] == (300, 1, 400 * 300)
    assert 300 > budgets[60].samples > budgets[120].samples > 8
    assert budgets[60].stride < budgets[120].stride < budgets[1000].stride
    for count in (8, 60, 120):
        samples, stride, area, frame_bytes = budgets[count]
        assert area >= 160 * 120
        sizes = count * samples * 256 + 40 * 0.12 * area + count * 300 / stride * frame_bytes
        assert sizes * 4 / 3 < 15_100_000
    assert page_budget(lengths[60], 512, 40, 15_000_000).samples < budgets[60].samples
    assert page_budget(lengths[120], 2048, 40, 3_000_000).samples == 8


def test_of_many_videos_some_of_each_view_are_shown():
    entries = [
        VideoEntry(f"v{i}", "ego" if i % 3 else "exo", "test", 3, 10.0, None, None)
        for i in range(150)
    ]
    shown = limit_videos([Segment(entry) for entry in entries])
    assert [segment.video.view for segment in shown] == ["ego"] * 60 + ["exo"] * 50
    assert [shown[index].video.id for index in (0, 59, 60, -1)] == ["v1", "v149", "v0", "v147"]


def test_facts_and_provenance(collected, shared_project):
    header = dict(collected.facts)
    footer = dict(collected.provenance)
    assert header["Recipe"] == "paper"
    assert header["STM ratio"] == "0.3"
    assert header["Model"].endswith("million parameters, 1 block, embedding width 32")
    assert header["Split"] == "test: 3 ego and 3 exo videos, 134 frames"
    config = json.loads((shared_project.run / "config.json").read_text())["training"]
    assert footer["encoder_sha256"] == config["encoder_sha256"]
    assert footer["preprocessing"] == config["preprocessing"]
    assert "latent 32, not 256" in footer["Settings that differ from the recipe"]
    assert "Training" not in header.keys() | footer.keys()  # shown only for unfinished runs


@pytest.mark.parametrize(
    ("settings", "network"),
    [
        ({"method": "tcc", "backbone": "frame", "depth": 12}, "frame head"),
        ({"method": "carl", "backbone": "transformer", "depth": 12}, "transformer"),
        ({"method": "timeline", "backbone": "encoder", "depth": 3}, "3 blocks"),
        ({"method": "mine"}, "network"),
    ],
)
def test_other_methods_are_not_described_as_byov(project, settings, network):
    data = project.read_split()
    data.reader.run.training["settings"] = settings
    header = dict(facts(data.reader.run, "test", data.frames))
    assert "Recipe" not in header
    assert header["Model"].endswith(f"million parameters, {network}, embedding width 32")


# Incomplete datasets


def test_without_labels(project):
    manifest = project.manifest()
    videos = tuple(replace(video, labels=None) for video in manifest.videos)
    Manifest(manifest.dataset, (), (), videos).save(project.manifest_path)
    content = project.collect()
    assert content.phases == ()
    assert all(video.labels is None for video in content.videos)
    assert content.missing == {}


def test_one_view(project):
    content = project.keep_videos(*TRAIN, "test_exo_0", "test_exo_1").collect()
    assert content.missing == {"strips": "the test split has no ego videos"}
    assert len(content.projection.frames) == 31 + 22
    assert [content.videos[selection.video].view for selection in content.tokens] == ["exo"]
    assert len(content.failures.worst) == 2


def test_one_video_and_one_frame(project):
    manifest = project.manifest()
    content = project.keep_videos(*TRAIN, "test_ego_1").collect()
    assert content.missing.keys() == {"strips", "vectors", "failures"}
    assert content.failures.reason == "the test split has only one video"
    assert content.videos[0].clip
    manifest.save(project.manifest_path)
    content = project.keep_videos(*TRAIN, "still").collect()
    assert content.missing["projection"] == "t-SNE needs at least 5 frames, found 1"
    assert content.tokens[0].frames == (0,)


def test_train_videos_only_and_no_train_videos(project):
    manifest = project.manifest()
    content = project.keep_videos(*TRAIN).collect()
    assert content.split == "train"
    assert content.missing == {"tables": "tea has no test or val videos to score"}
    manifest.save(project.manifest_path)
    content = project.keep_videos("test_ego_1", "test_exo_0").collect()
    assert content.missing["tables"].startswith("tea has no train videos")


def test_a_compared_run(project):
    project.keep_videos(*TRAIN, "test_ego_1", "test_exo_0")
    shutil.copytree(project.run, project.runs_dir / "second")
    second = read_run(project.runs_dir, "second")
    first, other = project.collect(compared=[second]).vectors
    assert (first.name, other.name) == ("first", "second")
    np.testing.assert_array_equal(first.embeddings[1], other.embeddings[1])
    shutil.rmtree(project.runs_dir / "second" / "embeddings")
    with pytest.raises(EvaluationError, match="byov-train --run second --embed-only"):
        project.collect(compared=[second])


# The CSV for byov-extract


def test_manifest_rows_are_the_csv_that_was_extracted(collected, shared_project):
    lines = (shared_project.root / "videos" / "tea.csv").read_text().splitlines()[1:]
    assert [row["path"] for row in collected.manifest_rows] == [
        line.split(",")[0] for line in lines
    ]
    labels = {video.id: video.labels for video in shared_project.manifest().videos}
    for row in collected.manifest_rows:
        events = [int(event.removesuffix("f")) for event in row["events"].split(";")]
        found = [sum(event <= frame for event in events) for frame in range(len(labels[row["id"]]))]
        assert tuple(found) == labels[row["id"]], row


@pytest.mark.parametrize(
    ("labels", "text"),
    [
        ((-1, -1, 0, 0, 1, 1, 2, -1), "0f -;2f +;4f;6f;7f -"),
        ((0, -1, 0, 1, -1, 2), "1f -;2f +;3f;4f -;5f"),
        ((-1, 2, 2, 2), "0f -;1f;1f"),
        ((0, 0, -1, -1), "2f -"),
        ((0, 0, 0), "3f;3f"),
        ((1, -1, 1, 2), "0f;1f -;2f +;3f"),
        ((0, 1, -1, 0), ""),
        ((-1, -1), ""),
        ((0, -2, 1), ""),
        ((0, 1, 3), ""),
    ],
)
def test_events_are_read_back_as_the_same_labels(labels, text, tmp_path):
    assert events_text(labels, 3) == text
    if text:
        for name in ("a.mp4", "b.mp4"):
            (tmp_path / name).touch()
        table = tmp_path / "videos.csv"
        table.write_text(f"path,view,split,events\na.mp4,ego,train,{text}\nb.mp4,exo,train,1;2\n")
        video = read_own_videos("mine", table).videos[0]
        assert video.phases(np.arange(len(labels)) / 10) == labels


# Training


def test_progress_labels_of_a_timeline_run(project, call):
    where = ("--features-dir", project.features_dir, "--runs-dir", project.runs_dir)
    tiny = ("--latent", 32, "--epochs", 1, "--frames", 8, "--device", "cpu")
    ran = call(train_main, "byov-train", "--run", "tl", "--method", "timeline", *tiny, *where)
    assert ran.code == 0, ran.err
    project.video("train_exo_0").unlink()
    project.video("train_exo_1").unlink()
    content = collect(project.runs_dir, project.features_dir, read_run(project.runs_dir, "tl"))
    ego, exo = content.progress
    views = ["ego", "ego", "exo", "exo"]
    ids = [f"train_{view}_{number}" for view, number in zip(views, (0, 1, 0, 1), strict=True)]
    features = [
        read_array(project.features(*video), "merged/0.3") for video in zip(views, ids, strict=True)
    ]
    aligned = aligned_progress(features, views, lambda rows: rows)
    labels = dict(zip(ids, (label.numpy() for label in aligned), strict=True))
    gaps = {
        video: np.abs(label - np.linspace(0, 1, len(label))).mean()
        for video, label in labels.items()
    }
    chosen = max(ids[:2], key=lambda video: gaps[video])
    assert ego.name == f"ego/{chosen}"
    np.testing.assert_allclose(ego.labels, labels[chosen], atol=1e-6)
    for frame, picture in zip(ego.frames, ego.pictures, strict=True):
        assert np.abs(picture[8:-8, 8:40].astype(int) - gray_of(frame)).max() <= 5
    assert exo.pictures is None, "the videos are gone"
    assert content.failures.similarity is None, "embeddings of the method are unit vectors"
    assert content.verdict.startswith("tl: Timeline (tiny, frozen) is ahead of Time only in ")


RECORDS = [
    {
        "epoch": 0,
        "step": 0,
        "retrieval": 0.9,
        "trimmed": 0.1,
        "tau": 0.9,
        "both": 0.5,
        "map@10_ego2exo": 0.9,
    }
    | {"diagnostics/cross/reversed": 0.5},
    {"epoch": 1, "step": 4, "lr": 1e-3, "loss": 3.0, "self": 1.0},
    {
        "epoch": 2,
        "step": 8,
        "lr": 1e-3,
        "loss": 2.0,
        "self": 0.5,
        "retrieval": 0.6,
        "tau": 0.1,
        "both": 0.7,
    }
    | {"diagnostics/cross/reversed": 0.4},
    {
        "epoch": 3,
        "step": 12,
        "lr": 1e-3,
        "loss": 1.0,
        "self": 0.4,
        "retrieval": 0.6,
        "tau": 0.3,
        "both": 0.8,
    },
]


@pytest.fixture
def curves_of(tmp_path):
    """Read the curves of a run with the given metrics.jsonl, whose saved model is from epoch 2."""

    def read(text, select="retrieval"):
        if text is not None:
            (tmp_path / "metrics.jsonl").write_bytes(
                text.encode() if isinstance(text, str) else text
            )
        saved = {"retrieval": 0.6, "tau": 0.1, "both": 0.7}
        training = {"settings": {"select": select}, "validation": saved}
        return read_curves(
            RunRecord(name="r", folder=tmp_path, training=training, **make_training())
        )

    return read


def test_losses_validation_scores_and_the_epoch_of_the_saved_model(curves_of):
    text = "".join(json.dumps(record) + "\n" for record in RECORDS)
    curves = curves_of(text)
    assert [curve.name for curve in curves.losses] == ["loss", "self"]
    assert curves.losses[0] == Curve("loss", (1, 2, 3), (3.0, 2.0, 1.0))
    assert [curve.name for curve in curves.validation] == ["retrieval", "trimmed", "both", "tau"]
    assert curves.validation[0] == Curve("retrieval", (0, 2, 3), (0.9, 0.6, 0.6))
    assert (curves.kept_epoch, curves_of(text, "last").kept_epoch) == (2, None)
    assert curves.diagnostics == (Curve("cross-view, reversed", (0, 2), (0.5, 0.4)),)


def test_the_kept_epoch_is_that_of_the_saved_model(shared_project, collected):
    validation = json.loads((shared_project.run / "config.json").read_text())["training"][
        "validation"
    ]
    curve = next(curve for curve in collected.curves.validation if curve.name == "retrieval")
    assert curve.values[curve.epochs.index(collected.curves.kept_epoch)] == validation["retrieval"]


@pytest.mark.parametrize(
    "text", [None, "", "{", "[]\n", '{"epoch": "1"}\n', '{"epoch": 1}\n', b"\xff\xfe"]
)
def test_missing_or_damaged_metrics(curves_of, text):
    with pytest.raises(CacheError, match=r"metrics\.jsonl"):
        curves_of(text)


def test_tsne_keeps_neighbors_together():
    random = np.random.default_rng(0)
    points = np.concatenate([random.normal(size=(15, 6)), random.normal(size=(15, 6)) + 50]).astype(
        np.float32
    )
    placed = tsne(points, 0)
    gaps = np.linalg.norm(placed[:, None] - placed[None], axis=2)
    assert gaps[:15, :15].max() < gaps[:15, 15:].min()


@pytest.mark.parametrize("width", [1, 5])
def test_tsne_of_equal_points(width):
    assert not tsne(np.full((8, width), 0.1, np.float32), 0).any()
    half = np.repeat(
        np.arange(2, dtype=np.float32)[:, None] * np.ones(width, np.float32), 4, axis=0
    )
    assert np.isfinite(tsne(half, 0)).all()
