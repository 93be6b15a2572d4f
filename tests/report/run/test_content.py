"""Every part of a report against what it should be, computed the long way."""

import json

import numpy as np
import pytest
from scipy.stats import kendalltau

from byov.cache.hdf5 import read_array
from byov.cache.manifest import VideoEntry
from byov.data.own_videos import read_own_videos
from byov.report.content import Unavailable
from byov.report.failures import mean_taus, softmax_similarity
from byov.report.gallery import Gallery
from byov.report.listing import events_text
from byov.report.material import some_of_each_view
from byov.report.nearest_frames import choose_strips
from byov.report.projection import choose_frames, tsne
from byov.report.room import divide, moments
from byov.report.similarity import compare
from byov.report.spread import centers, evenly


@pytest.fixture(scope="module")
def embeddings(whole_project, content):
    """By index in Content.videos, read from the files themselves."""
    return [
        read_array(whole_project.run / "embeddings" / f"{video.name}.h5", "embedding").astype(np.float64)
        for video in content.videos
    ]


def of_view(content, view):
    return [index for index, video in enumerate(content.videos) if video.view == view]


def test_every_part_is_there(content):
    parts = ("tables", "curves", "projection", "strips", "tokens", "similarity", "failures", "vectors")
    assert not [name for name in parts if isinstance(getattr(content, name), Unavailable)]
    assert (content.run, content.dataset, content.split) == ("first", "tea", "test")
    assert content.phases == ("phase 0", "phase 1", "phase 2")


def test_videos_are_those_of_the_test_split_with_their_own_times_and_labels(content, whole_project):
    entries = {f"{video.view}/{video.id}": video for video in whole_project.manifest().videos if video.split == "test"}
    assert {video.name for video in content.videos} == entries.keys()
    assert "ego/cup & 'saucer' [1]" in entries
    for video in content.videos:
        assert (video.frames, video.labels) == (entries[video.name].frames, entries[video.name].labels)
        np.testing.assert_allclose(video.pts_seconds, np.arange(video.frames) / 10, atol=1e-6)


def test_tables_are_those_of_the_evaluator(content, whole_project):
    from byov.evaluate.embeddings import RunEmbeddings
    from byov.evaluate.evaluation import Scope, evaluate
    from byov.evaluate.tasks import EvaluationOptions

    titles = [table.title for table in content.tables]
    assert any("standard protocol" in title for title in titles)
    assert any("trimmed protocol" in title for title in titles)
    names = [row.name for row, _ in content.tables[0].measured]
    assert names[-1:] == list(content.own_rows) == ["first: BYOV, paper (tiny, frozen)"]
    assert {"Time only", "Untrained (first)"} <= set(names)
    assert {"Random features (tiny), merged 0.3", "Random features (tiny), merged 0.3, standardized"} <= set(names)
    reader = RunEmbeddings(whole_project.runs_dir, whole_project.features_dir, "first")
    scored = evaluate(reader, Scope("test", ("standard",), ("tau",), EvaluationOptions()))["standard"]
    column = [column.score for column in content.tables[0].columns].index("kendalls_tau/all")
    _, cells = content.tables[0].measured[-1]
    assert cells[column].text == f"{scored.value('kendalls_tau/all'):.4f}"


def test_strips_query_both_ways_and_retrieve_the_nearest_frame_of_each_video(content, embeddings):
    views = [content.videos[strip.query.video].view for strip in content.strips]
    assert views == ["ego"] * 3 + ["exo"] * 3
    for strip in content.strips:
        query = embeddings[strip.query.video][strip.query.frame]
        found = []
        for other in of_view(content, "exo" if content.videos[strip.query.video].view == "ego" else "ego"):
            distances = np.sqrt(((embeddings[other] - query) ** 2).sum(axis=1))
            found.append((distances.min(), other, distances.argmin()))
        expected = [(other, frame) for _, other, frame in sorted(found)[:5]]
        assert [(ref.video, ref.frame) for ref in strip.retrieved] == expected


def test_strips_come_from_different_videos_and_moments(content):
    ego = [strip.query for strip in content.strips[:3]]
    assert len({query.video for query in ego}) == 3
    exo = [strip.query for strip in content.strips[3:]]
    shares = [query.frame / content.videos[query.video].frames for query in exo]
    assert shares == pytest.approx([1 / 6, 1 / 2, 5 / 6], abs=0.04)


def test_embeddings_of_all_moments_of_all_videos_travel_with_the_page(content, embeddings):
    (run,) = content.vectors
    assert run.name == "first"
    for video, rows, exact in zip(content.videos, run.of_video, embeddings, strict=True):
        assert video.moments == video.sheet.frames == tuple(range(video.frames))  # all are short
        np.testing.assert_array_equal(rows, exact[list(video.moments)])


def test_worst_videos_stand_beside_the_video_that_they_are_matched_worst_to(content, embeddings):
    for worst in content.failures.worst:
        query = embeddings[worst.video]
        taus = {
            other: _tau(((query[::5, None] - candidate[None, ::5]) ** 2).sum(axis=2).argmin(axis=1))
            for other, candidate in enumerate(embeddings)
            if other != worst.video
        }
        known = {other: tau for other, tau in taus.items() if not np.isnan(tau)}
        assert worst.partner_tau == pytest.approx(min(known.values()))
        assert known[worst.partner] == pytest.approx(worst.partner_tau)
        distances = np.linalg.norm(query[list(worst.frames), None] - embeddings[worst.partner], axis=2)
        assert worst.matched == tuple(distances.argmin(axis=1))


def test_the_listing_is_the_csv_that_was_extracted(content, whole_project):
    """Events are read back as the same frames."""
    lines = (whole_project.root / "videos" / "tea.csv").read_text().splitlines()[1:]
    assert [line.path for line in content.listing] == [line.split(",")[0] for line in lines]
    labels = {video.id: video.labels for video in whole_project.manifest().videos}
    for listed in content.listing:
        times = np.array(listed.events.split(";"), float)
        found = [int((times <= frame / 10 + 1e-9).sum()) for frame in range(len(labels[listed.id]))]
        assert tuple(found) == labels[listed.id], listed


@pytest.mark.parametrize(
    ("labels", "text"),
    [
        ((-1, -1, 0, 0, 1, 1, 2, -1), "0.000 -;0.150 +;0.350;0.550;0.650 -"),
        ((0, -1, 0, 1, -1, 2), "0.050 -;0.150 +;0.250;0.350 -;0.450"),
        ((-1, 2, 2, 2), "0.000 -;0.050;0.050"),
        ((0, 0, -1, -1), "0.150 -"),
        ((0, 0, 0), "0.250;0.250"),
        ((1, -1, 1, 2), "0.000;0.050 -;0.150 +;0.250"),
        ((0, 1, -1, 0), ""),
        ((-1, -1), ""),
        ((0, -2, 1), ""),
        ((0, 1, 3), ""),
    ],
)
def test_unlabeled_stretches_are_read_back_as_they_are(labels, text, tmp_path):
    entry = VideoEntry("a", "ego", "train", len(labels), 10.0, labels, None)
    assert events_text(entry, 3) == text
    if text:
        for name in ("a.mp4", "b.mp4"):
            (tmp_path / name).touch()
        table = tmp_path / "videos.csv"
        table.write_text(f"path,view,split,events\na.mp4,ego,train,{text}\nb.mp4,exo,train,1;2\n")
        video = read_own_videos("mine", table).videos[0]
        assert video.phases(np.arange(len(labels)) / 10) == labels


def test_similarity_is_of_the_first_videos_and_its_path_is_the_cheapest(content, embeddings):
    similarity = content.similarity
    a, b = embeddings[similarity.rows], embeddings[similarity.columns]
    assert content.videos[similarity.rows].name == "ego/cup & 'saucer' [1]"
    assert content.videos[similarity.columns].name == "exo/test_exo_0"
    expected = np.sqrt(((a[:, None] - b[None]) ** 2).sum(axis=2))
    np.testing.assert_allclose(similarity.distances, expected, rtol=1e-5)
    np.testing.assert_array_equal(similarity.nearest, expected.argmin(axis=1))
    assert similarity.tau == pytest.approx(kendalltau(np.arange(len(a)), similarity.nearest).statistic)
    costs = np.full((len(a) + 1, len(b) + 1), np.inf)
    costs[0, 0] = 0
    for row in range(len(a)):
        for column in range(len(b)):
            before = min(costs[row, column], costs[row, column + 1], costs[row + 1, column])
            costs[row + 1, column + 1] = expected[row, column] + before
    assert expected[tuple(similarity.path.T)].sum() == pytest.approx(costs[-1, -1])


def test_worst_videos_are_those_with_the_lowest_tau_in_both_roles(content, embeddings):
    names = {name: index for index, name in enumerate(video.name for video in content.videos)}
    thinned = [one[::5] for one in embeddings]
    means = {}
    for index in names.values():
        taus = []
        for other in set(names.values()) - {index}:
            for query, candidate in ((index, other), (other, index)):
                distances = ((thinned[query][:, None] - thinned[candidate][None]) ** 2).sum(axis=2)
                taus.append(_tau(distances.argmin(axis=1)))
        known = [tau for tau in taus if not np.isnan(tau)]
        if known:
            means[index] = np.mean(known)
    assert "ego/still" not in [content.videos[index].name for index in means]
    expected = sorted(means, key=lambda index: means[index])[:3]
    assert [worst.video for worst in content.failures.worst] == expected
    assert [worst.tau for worst in content.failures.worst] == pytest.approx([means[index] for index in expected])


def _tau(matched):
    return np.nan if len(set(matched.tolist())) < 2 else kendalltau(np.arange(len(matched)), matched).statistic


def test_the_worst_video_is_compared_with_its_middle_frame_by_a_softmax(content, embeddings):
    failures = content.failures
    worst = failures.worst[0].video
    assert failures.reference.video == worst
    assert failures.reference.frame == content.videos[worst].frames // 2
    z = embeddings[worst]
    scores = np.exp(z @ z[failures.reference.frame] / np.sqrt(z.shape[1]))
    np.testing.assert_allclose(failures.similarity, scores / scores.sum(), rtol=1e-6)
    assert failures.similarity.sum() == pytest.approx(1)


def test_mean_taus_leave_out_what_is_not_known():
    taus = np.array([[np.nan, 0.5, np.nan], [0.1, np.nan, np.nan], [np.nan, np.nan, np.nan]])
    np.testing.assert_allclose(mean_taus(taus), [0.3, 0.3, np.nan])


def test_softmax_of_large_products_stays_finite():
    share = softmax_similarity(np.full((4, 2), 1e4, np.float32), 1)
    np.testing.assert_allclose(share, 0.25)


def test_projection_places_frames_of_all_videos_frozen_untrained_and_trained(content, whole_project, embeddings):
    projection = content.projection
    titles = [one.title for one in projection.maps]
    assert titles == ["Frozen: Random features (tiny), merged 0.3", "Untrained", "Trained: first"]
    assert len(projection.frames) == projection.frames_of_split == sum(video.frames for video in content.videos)
    assert all(np.isfinite(one.points).all() for one in projection.maps)
    names = [content.videos[ref.video].name.split("/") for ref in projection.frames]
    trained = [embeddings[ref.video][ref.frame] for ref in projection.frames]
    files = [whole_project.run / "embeddings-untrained" / view / f"{name}.h5" for view, name in names]
    frozen = [whole_project.features(*name) for name in names]
    rows = {
        "Frozen": [
            read_array(path, "merged/0.3")[ref.frame] for path, ref in zip(frozen, projection.frames, strict=True)
        ],
        "Untrained": [
            read_array(path, "embedding")[ref.frame] for path, ref in zip(files, projection.frames, strict=True)
        ],
        "Trained": trained,
    }
    for one in projection.maps:
        expected = tsne(np.array(rows[one.title.partition(":")[0]], np.float32), 0)
        np.testing.assert_allclose(one.points, expected)


def test_as_many_points_of_each_video_and_no_more_than_fit():
    known = [tuple(range(0, 200, 2))] * 30
    chosen = choose_frames(known)
    assert [video for video, _ in chosen] == list(range(30))
    assert {len(frames) for _, frames in chosen} == {20}
    assert all(set(frames) <= set(known[0]) for _, frames in chosen)


def test_a_page_has_room_for_fewer_moments_of_more_videos():
    few, many, huge = (divide([300] * count, 256, 1, 15_000_000) for count in (8, 60, 120))
    assert (few.moments, many.moments > huge.moments > 8) == (100, True)
    for room, count in ((few, 8), (many, 60), (huge, 120)):
        assert (room.picture_bytes + count * room.moments * 256) * 4 / 3 < 15_000_000
        assert room.picture_bytes / (count * room.moments) > 2400
    assert divide([300] * 60, 256, 2, 15_000_000).moments < many.moments
    assert divide([300] * 120, 1024, 2, 3_000_000).moments >= 8
    assert moments(300, many) == evenly(300, many.moments)


def test_t_sne_keeps_neighbors_together():
    random = np.random.default_rng(0)
    points = np.concatenate([random.normal(size=(15, 6)), random.normal(size=(15, 6)) + 50]).astype(np.float32)
    placed = tsne(points, 0)
    gaps = np.linalg.norm(placed[:, None] - placed[None], axis=2)
    assert gaps[:15, :15].max() < gaps[:15, 15:].min()


@pytest.mark.parametrize("width", [1, 5])
def test_t_sne_of_equal_points_is_no_error(width):
    assert not tsne(np.full((8, width), 0.1, np.float32), 0).any()
    half = np.repeat(np.arange(2, dtype=np.float32)[:, None] * np.ones(width, np.float32), 4, axis=0)
    assert np.isfinite(tsne(half, 0)).all()


def test_facts_and_provenance_say_what_the_figures_depend_on(content, whole_project):
    facts, provenance = dict(content.facts), dict(content.provenance)
    assert facts["Recipe"] == "paper"
    assert facts["STM ratio"] == "0.3"
    assert "latent width 32" in facts["Model"]
    assert facts["Split"] == "test: 3 ego and 3 exo videos, 134 frames"
    config = json.loads((whole_project.run / "config.json").read_text())["training"]
    assert provenance["SHA-256 of the encoder's weights"] == config["encoder_sha256"]
    assert provenance["Preprocessing"] == config["preprocessing"]
    assert "latent 32, not 256" in provenance["Settings other than the recipe's"]
    assert "seed 0" in provenance["t-SNE"]
    assert "Training" not in facts.keys() | provenance.keys()  # of a run that is finished there is nothing to say


def test_nothing_tells_where_it_was_made(content, whole_project):
    assert str(whole_project.root) not in repr(content)


def test_evenly_takes_the_ends_and_never_one_twice():
    assert evenly(5, 5) == (0, 1, 2, 3, 4)
    assert evenly(1, 100) == (0,)
    for count in (101, 199, 1000):
        chosen = evenly(count, 100)
        assert len(chosen) == len(set(chosen)) == 100
        assert (chosen[0], chosen[-1]) == (0, count - 1)


def test_centers_lie_in_the_middle_of_their_parts():
    assert centers(100, 5) == (10, 30, 50, 70, 90)
    assert centers(1, 5) == (0,)


def test_long_videos_are_thinned_for_the_matrix_of_distances(make_material):
    material = make_material([1000, 450], [True, False])
    similarity = compare(material)
    assert similarity.distances.shape == (400, 400)
    rows, columns = similarity.row_frames, similarity.column_frames
    assert (rows, columns) == (evenly(1000, 400), evenly(450, 400))
    expected = np.linalg.norm(material.embeddings(0)[rows[7]] - material.embeddings(1)[columns[311]])
    assert similarity.distances[7, 311] == pytest.approx(expected, rel=1e-5)
    assert similarity.path[-1].tolist() == [399, 399]
    assert similarity.nearest.max() < 400


def test_at_most_five_are_retrieved_nearest_first(make_material):
    material = make_material([130] * 7 + [120] * 8, [True] * 7 + [False] * 8)
    gallery = Gallery(15)
    strips = choose_strips(material, gallery)
    assert [len(strip.retrieved) for strip in strips] == [5] * 6
    distances = [
        [np.linalg.norm(_embedding(material, ref) - _embedding(material, strip.query)) for ref in strip.retrieved]
        for strip in strips
    ]
    assert distances == [sorted(row) for row in distances]
    queries = [(strip.query.video, strip.query.frame) for strip in strips]
    assert queries == [(1, 21), (3, 65), (5, 108), (8, 20), (11, 60), (13, 100)]
    assert all(strip.query.frame in gallery.frames(strip.query.video) for strip in strips)


def _embedding(material, ref):
    return material.embeddings(ref.video)[ref.frame]


def test_of_very_many_videos_some_of_each_view_are_shown(make_material):
    material = make_material([3] * 150, [index % 3 > 0 for index in range(150)])
    shown = some_of_each_view(material.segments)
    views = [segment.video.view for segment in shown]
    assert (views.count("ego"), views.count("exo")) == (60, 50)
    assert (shown[0], shown[-1]) == (material.segments[0], material.segments[-1])
    assert [material.segments.index(segment) for segment in shown] == sorted(map(material.segments.index, shown))
