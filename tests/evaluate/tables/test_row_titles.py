import pytest

from byov.evaluate.embeddings import row_title


@pytest.mark.parametrize(
    ("encoder", "shown"),
    [
        ("openai/clip-vit-base-patch16", "ViT-B/16"),
        ("openai/clip-vit-large-patch14", "ViT-L/14"),
        ("openai/clip-vit-large-patch14-336", "ViT-L/14-336"),
        ("microsoft/resnet-50", "resnet-50"),
        ("imagenet/efficientnet-lite0", "efficientnet-lite0"),
        ("random/tiny", "tiny"),
    ],
)
def test_a_row_says_which_features_it_is_of_and_that_they_are_frozen(encoder, shown):
    assert row_title("TCC", encoder) == f"TCC ({shown}, frozen)"
