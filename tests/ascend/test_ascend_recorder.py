"""The machine of these tests: the real torch_npu runs on the recorder, which does what the other tests rely on."""

from collections.abc import Callable

Run = Callable[..., str]


def test_a_product_reaches_cann_and_is_right(ascend: Run) -> None:
    ascend("""
        assert not torch.npu.is_initialized()
        a, b = torch.randn(5, 7), torch.randn(7, 3)
        c = a.npu() @ b.npu()
        assert [call for call in calls() if "aclnn" in call] == ["aclnnMatmul(float32, cubeMathType=0)"]
        assert torch.allclose(c.cpu(), a @ b, atol=1e-6)
    """)
