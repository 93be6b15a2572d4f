"""Text formatting."""


def printable(text: str) -> str:
    """Escape control characters, so that file contents cannot control the terminal."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


def format_size(size_bytes: int) -> str:
    """Format a size in bytes: 1536 -> "1.5 KiB"."""
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def pluralize(count: int, noun: str) -> str:
    """Format a count with its noun: 1, "video" -> "1 video"; 1234, "video" -> "1,234 videos"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def format_duration(seconds: float) -> str:
    """Format a duration in seconds: 40 -> "40 s", 400 -> "7 min", 40000 -> "11.1 h"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"
