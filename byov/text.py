"""Texts for people."""


def printable(text: str) -> str:
    """`text` with control characters spelt out, so that no file's contents can steer a terminal."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )


def size_text(size_bytes: int) -> str:
    """1536 → "1.5 KiB"."""
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
