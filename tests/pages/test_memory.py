"""What is kept of recent runs: the last ones, up to so many bytes, and the newest in any case."""

from __future__ import annotations

from pages.shared.memory import Memory


def test_the_oldest_go_first_and_what_is_asked_for_again_stays() -> None:
    made: list[str] = []

    def value(key: str) -> str:
        return memory.get(key, lambda: made.append(key) or key * 10)

    memory: Memory[str] = Memory(25, len)
    for key in ("a", "b", "a", "c", "a", "b"):
        assert value(key) == key * 10
    assert made == ["a", "b", "c", "b"]


def test_what_alone_is_too_large_is_kept_until_the_next() -> None:
    memory: Memory[str] = Memory(5, len)
    assert memory.get("a", lambda: "large value") == memory.get("a", lambda: "never made") == "large value"
    memory.get("b", lambda: "small")
    assert memory.get("a", lambda: "anew") == "anew"
