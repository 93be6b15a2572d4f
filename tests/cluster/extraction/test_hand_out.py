"""Which videos a worker gets next."""

from collections.abc import Sequence
from pathlib import Path

from byov.cluster.hand_out import MOST_ATTEMPTS, MOST_VIDEOS, HandOut
from byov.cluster.worker_report import WorkerReport
from byov.data.dataset import Video
from byov.extract.plan import Job


def jobs_of(sizes: Sequence[int]) -> tuple[list[Job], dict[str, int]]:
    videos = [Video(f"v{index}", "ego", "train", Path(f"v{index}.mp4")) for index in range(len(sizes))]
    jobs = [Job(video, Path("cache"), "missing", "", None, None, None, (0.3,)) for video in videos]
    return jobs, {video.id: size for video, size in zip(videos, sizes, strict=True)}


def hand_out_of(sizes: Sequence[int], workers: int = 2) -> HandOut:
    return HandOut(*jobs_of(sizes), workers)


def names(chunk: Sequence[Job]) -> list[str]:
    return [job.video.id for job in chunk]


def all_chunks(hand_out: HandOut) -> list[list[str]]:
    return [names(chunk) for chunk in iter(hand_out.chunk, [])]


def test_every_video_is_handed_out_once_and_the_largest_first():
    sizes = [5, 90, 1, 40, 40, 3, 77, 2]
    handed = [name for chunk in all_chunks(hand_out_of(sizes)) for name in chunk]
    assert handed == ["v1", "v6", "v3", "v4", "v0", "v5", "v7", "v2"]


def test_chunks_shrink_to_single_videos():
    lengths = [len(chunk) for chunk in all_chunks(hand_out_of([1] * 100))]
    assert lengths[0] == 25  # half of its share of two workers
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[-1] == 1
    assert sum(lengths) == 100


def test_chunks_are_limited_and_never_empty():
    assert len(hand_out_of([1] * 1000, workers=1).chunk()) == MOST_VIDEOS
    assert all_chunks(hand_out_of([0, 0], workers=8)) == [["v0"], ["v1"]]
    assert all_chunks(hand_out_of([])) == []


def test_videos_lost_together_are_done_one_by_one():
    hand_out = hand_out_of([1] * 12)
    chunk = hand_out.chunk()
    assert len(chunk) == 3
    assert hand_out.lost(chunk, chunk[1:]) == []
    assert [names(hand_out.chunk()) for _ in range(2)] == [["v1"], ["v2"]]
    assert names(hand_out.chunk()) == ["v3", "v4", "v5"]


def test_a_video_is_given_up_after_three_losses_of_its_own():
    hand_out = hand_out_of([1] * 4, workers=1)
    chunk = hand_out.chunk()
    assert names(chunk) == ["v0", "v1"]
    assert hand_out.lost(chunk, chunk) == []  # which of them is to blame cannot be told
    for attempt in range(MOST_ATTEMPTS - 1):
        first = hand_out.chunk()
        assert names(first) == ["v0"]
        assert hand_out.lost(first, first) == []
        if not attempt:
            assert names(hand_out.chunk()) == ["v1"]
    last = hand_out.chunk()
    assert hand_out.lost(last, last) == last
    assert all_chunks(hand_out) == [["v2"], ["v3"]]


def test_workers_that_differ_are_told_by_what():
    one = WorkerReport("a", {"byov": "1", "torch": "2.8"})
    assert one.difference(WorkerReport("b", {"byov": "1", "torch": "2.8"})) == ""
    assert one.difference(WorkerReport("b", {"byov": "1", "torch": "2.7"})) == "torch is 2.8 on a, 2.7 on b"
