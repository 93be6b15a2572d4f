"""Every part of a report against what it should be, computed the long way."""

import json

import numpy as np
import pytest
from scipy.stats import kendalltau

from byov.cache.row_reader import read_array
from byov.report.content import Sheet, Unavailable
from byov.report.failures import mean_taus, softmax_similarity
from byov.report.gallery import Gallery
from byov.report.material import some_of_each_view
from byov.report.nearest_frames import choose_player_videos, choose_strips, matches
from byov.report.projection import tsne
from byov.report.similarity import compare
from byov.report.spread import centres, evenly


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
    parts = ("tables", "curves", "projection", "strips", "tokens", "similarity", "failures", "matches")
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
    from byov.evaluate.evaluation import evaluate_run

    titles = [table.title for table in content.tables]
    assert any("standard protocol" in title for title in titles)
    assert any("trimmed protocol" in title for title in titles)
    names = [name for name, _ in content.tables[0].measured]
    assert names[-1] == "first"
    assert {"Time only", "Untrained (first)"} <= set(names)
    assert {"Random features (tiny), merged 0.3", "Random features (tiny), merged 0.3, standardised"} <= set(names)
    scores = evaluate_run(whole_project.runs_dir, whole_project.features_dir, "first")["scores"]
    column = [column.score for column in content.tables[0].columns].index("kendalls_tau/all")
    row = dict(content.tables[0].measured)["first"]
    assert row[column].text == f"{scores['kendalls_tau']:.4f}"


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


def test_matches_are_the_nearest_of_the_frames_that_can_be_seen(content, embeddings):
    pairs = {(match.query, match.candidate) for match in content.matches}
    ego, exo = of_view(content, "ego"), of_view(content, "exo")
    assert pairs == {(a, b) for a in ego for b in exo} | {(b, a) for a in ego for b in exo}
    for match in content.matches:
        seen, searched = (content.videos[index].sheet.frames for index in (match.query, match.candidate))
        assert len(match.frames) == len(seen)
        for frame, found in zip(seen, match.frames, strict=True):
            differences = embeddings[match.candidate][list(searched)] - embeddings[match.query][frame]
            assert found == searched[(differences**2).sum(axis=1).argmin()]


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


def test_projection_places_the_frames_of_two_videos_of_each_view(content, whole_project, embeddings):
    projection = content.projection
    assert projection.before_name == "Random features (tiny), merged 0.3"
    shown = sorted({ref.video for ref in projection.frames})
    assert [content.videos[index].view for index in shown] == ["ego", "ego", "exo", "exo"]
    frames = sum(content.videos[index].frames for index in shown)  # all are short
    assert len(projection.frames) == frames
    assert projection.before.shape == projection.after.shape == (frames, 2)
    assert np.isfinite(projection.before).all()
    assert np.isfinite(projection.after).all()
    points = np.stack([embeddings[ref.video][ref.frame] for ref in projection.frames]).astype(np.float32)
    np.testing.assert_allclose(projection.after, tsne(points, 0))
    features = [
        read_array(whole_project.features(*content.videos[ref.video].name.split("/")), "merged/0.3")[ref.frame]
        for ref in projection.frames
    ]
    np.testing.assert_allclose(projection.before, tsne(np.array(features, np.float32), 0))


def test_t_sne_keeps_neighbours_together():
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


def test_nothing_tells_where_it_was_made(content, whole_project):
    assert str(whole_project.root) not in repr(content)


def test_evenly_takes_the_ends_and_never_one_twice():
    assert evenly(5, 5) == (0, 1, 2, 3, 4)
    assert evenly(1, 100) == (0,)
    for count in (101, 199, 1000):
        chosen = evenly(count, 100)
        assert len(chosen) == len(set(chosen)) == 100
        assert (chosen[0], chosen[-1]) == (0, count - 1)


def test_centres_lie_in_the_middle_of_their_parts():
    assert centres(100, 5) == (10, 30, 50, 70, 90)
    assert centres(1, 5) == (0,)


def test_long_videos_are_thinned_for_the_matrix_of_distances(make_material):
    material = make_material([1000, 450], [True, False])
    similarity = compare(material, Gallery())
    assert similarity.distances.shape == (400, 400)
    rows, columns = similarity.row_frames, similarity.column_frames
    assert (rows, columns) == (evenly(1000, 400), evenly(450, 400))
    expected = np.linalg.norm(material.embeddings(0)[rows[7]] - material.embeddings(1)[columns[311]])
    assert similarity.distances[7, 311] == pytest.approx(expected, rel=1e-5)
    assert similarity.path[-1].tolist() == [399, 399]
    assert similarity.nearest.max() < 400


def test_at_most_five_retrieved_three_videos_of_a_view_and_a_hundred_frames(make_material):
    material = make_material([130] * 7 + [120] * 8, [True] * 7 + [False] * 8)
    gallery = Gallery()
    chosen = choose_player_videos(material, gallery)
    assert chosen == [0, 1, 2, 7, 8, 9]
    assert all(len(gallery.frames(video)) == 100 for video in chosen)
    strips = choose_strips(material, gallery)
    assert [len(strip.retrieved) for strip in strips] == [5] * 6
    distances = [
        [
            np.linalg.norm(_embedding(material, gallery, ref) - _embedding(material, gallery, strip.query))
            for ref in strip.retrieved
        ]
        for strip in strips
    ]
    assert distances == [sorted(row) for row in distances]
    queries = [(gallery.videos[strip.query.video], strip.query.frame) for strip in strips]
    assert queries == [(1, 21), (3, 65), (5, 108), (8, 20), (11, 60), (13, 100)]


def _embedding(material, gallery, ref):
    return material.embeddings(gallery.videos[ref.video])[ref.frame]


def test_of_very_many_videos_some_of_each_view_are_shown(make_material):
    material = make_material([3] * 150, [index % 3 > 0 for index in range(150)])
    shown = some_of_each_view(material.segments)
    views = [segment.video.view for segment in shown]
    assert (views.count("ego"), views.count("exo")) == (60, 50)
    assert (shown[0], shown[-1]) == (material.segments[0], material.segments[-1])
    assert [material.segments.index(segment) for segment in shown] == sorted(map(material.segments.index, shown))


def test_matches_name_frames_and_not_places_on_the_sheet(make_material):
    material = make_material([130, 120], [True, False])
    seen = [evenly(130, 10), evenly(120, 7)]
    pictures = [Sheet(frames, 1, 1, 1, b"") for frames in seen]
    forth, back = matches(material, [0, 1], {0: 0, 1: 1}, pictures)
    for match in (forth, back):
        queries, shown = seen[match.query], seen[match.candidate]
        expected = []
        for query in material.embeddings(match.query)[list(queries)]:
            found = int(np.linalg.norm(material.embeddings(match.candidate) - query, axis=1).argmin())
            expected.append(min(shown, key=lambda at: abs(at - found)))
        assert list(match.frames) == expected
