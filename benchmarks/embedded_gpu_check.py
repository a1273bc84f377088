"""The embedded engine's tests on an accelerator without pytest: ``python -m benchmarks.embedded_gpu_check``."""

from __future__ import annotations

import time
import traceback

from tests.mechanisms.engine import test_on_gpu


def main() -> None:
    """Run each and say what came out; the exit code is 1 if one failed."""
    failures = 0
    for slots in (1, 8, 32):
        failures += _run(f"fast paths, {slots} slots", lambda slots=slots: _fast(slots))
    failures += _run("twice the same", test_on_gpu.test_the_same_path_serves_the_same_twice)
    raise SystemExit(min(failures, 1))


def _fast(slots: int) -> None:
    test_on_gpu.test_fast_paths_serve_what_the_plain_path_serves(slots)


def _run(name: str, test: object) -> int:
    assert callable(test), "a test is a function"
    begun = time.perf_counter()
    try:
        test()
    except (AssertionError, RuntimeError, TypeError, ValueError, LookupError) as error:
        print(f"FAILED {name}: {type(error).__name__}: {error}", flush=True)
        traceback.print_exc()
        return 1
    print(f"passed {name} in {time.perf_counter() - begun:.1f} s", flush=True)
    return 0


if __name__ == "__main__":
    main()
