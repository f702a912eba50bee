"""Several threads compute convolutions at once, under one policy: by cuDNN's stand-in, and by our own kernels, emulated."""

import textwrap
from collections.abc import Callable

THREADS = """
import faulthandler, itertools, threading
from standin_driver import *
driver = start_driver("f64")
faulthandler.dump_traceback_later(90, exit=True)  # threads that wait for each other say where
names = {"fprop": "implicit_gemm", "dgrad": "algo_1", "wgrad": "algo_3"}
rules = "weight=6x4x5x5: fprop=fft_tiling, dgrad=fft_tiling; weight=4x1x3x3: fprop=direct; weight=6x4x2x2: fprop=gemm, dgrad=algo_0"
ask(conv_algo_rules=rules, fallback="error", **{f"conv_{direction}_algo": name for direction, name in names.items()})
threads, rounds = 4, 6
shapes = {(6, 4, 3, 3): names}
shapes[6, 4, 5, 5] = {**names, "fprop": "fft_tiling", "dgrad": "fft_tiling"}
shapes[6, 4, 2, 2] = {**names, "fprop": "gemm", "dgrad": "algo_0"}
shapes[4, 1, 3, 3] = {**names, "fprop": "direct"}
"""


def test_threads_at_once_get_what_is_right_and_are_all_counted(asking: Callable[[str], str]) -> None:
    """Both through autograd, whose one thread of a device computes all gradients, and with gradients in the threads themselves.
    Each meets all problems, in an order of its own: some at once for the first time."""
    code = """
    def problem(number, shape):
        generator = torch.Generator().manual_seed(number)
        x, w = (torch.randn(size, dtype=torch.float64, generator=generator) for size in ((2, 4, 9, 8), shape))
        return x, w, 4 // shape[1]

    def gradients(x, w, groups):
        y = torch.nn.functional.conv2d(x, w, groups=groups)
        geometry = [1, 1], [0, 0], [1, 1], False, [0, 0], groups
        gx, gw, _ = torch.ops.aten.convolution_backward(2 * y, x, w, None, *geometry, [True, True, False])
        return [y, gx, gw]

    given = {key: problem(*key) for key in itertools.product(range(threads), shapes)}
    exact = {key: gradients(*one) for key, one in given.items()}
    start, wrong = threading.Barrier(threads), []

    def work(number):
        try:
            start.wait()
            for turn in range(rounds):
                for at in range(len(shapes)):
                    key = number, list(shapes)[(at + number // 2) % len(shapes)]
                    x, w, groups = given[key]
                    how = gradients if turn % 2 else lambda x, w, groups: compute(x, w, groups=groups)
                    for one, truth in zip(how(*on_far(x, w), groups), exact[key], strict=True):
                        torch.testing.assert_close(one.cpu(), truth)
        except BaseException as error:
            start.abort()
            wrong.append(error)

    log(cudnn), driver_log(driver)
    workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong, wrong

    found = {}
    for row in rows():
        key = row.problem.weight, row.direction
        assert row.ran == row.requested, row
        assert key not in found, "one row a problem"
        found[key] = row.ran, row.calls
    assert found == {
        (shape, direction): (name, threads * rounds) for shape, of in shapes.items() for direction, name in of.items()
    }, found
    ran, launched = log(cudnn), [line for line in driver_log(driver) if line != "load"]
    assert len(launched) == threads * rounds, launched
    assert all(line.startswith("depthwise_fprop_f64") for line in launched)
    assert len(ran) + len(launched) == 3 * len(shapes) * threads * rounds
    assert not own_calls
    """
    asking(THREADS + textwrap.dedent(code))
