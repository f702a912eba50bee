"""The machine of these tests: the real torch_npu runs on the recorder, which does what the other tests rely on."""

from collections.abc import Callable

import pytest

Run = Callable[..., str]


def test_a_product_reaches_cann_and_is_right(ascend: Run) -> None:
    ascend("""
        assert not torch.npu.is_initialized()
        a, b = torch.randn(5, 7), torch.randn(7, 3)
        c = a.npu() @ b.npu()
        assert [call for call in calls() if "aclnn" in call] == ["aclnnMatmul(float32, cubeMathType=0)"]
        assert torch.allclose(c.cpu(), a @ b, atol=1e-6)
    """)


@pytest.mark.full
def test_chips_versions_and_devices_are_those_asked_for(ascend: Run) -> None:
    code = """
        from torch_npu.npu.utils import get_cann_version
        print(torch.npu.get_device_name(), get_cann_version(), get_cann_version("RUNTIME"), torch.npu.device_count())
        print(torch.npu.get_device_properties(0).total_memory >> 20)
    """
    assert ascend(code).split() == ["Ascend910B1", "8.5.0", "8.5.0", "2", "65536"]
    other = ascend(code, soc="Ascend910A", cann="8.0.0", devices=8, memory_mb=1024)
    assert other.split() == ["Ascend910A", "8.0.0", "8.0.0", "8", "1024"]


@pytest.mark.full
def test_faults_come_when_they_are_asked_for(ascend: Run) -> None:
    ascend("""
        torch.npu.set_device(0)
        fail("aclrtSetOpExecuteTimeOutV2", nth=2)
        torch.npu.set_op_timeout_ms(1000)
        try:
            torch.npu.set_op_timeout_ms(2000)
        except RuntimeError:
            pass
        else:
            raise AssertionError("the second call was to fail")
        torch.npu.set_op_timeout_ms(3000)
        found = calls("aclrtSetOpExecuteTimeOutV2")
        assert found == [
            "aclrtSetOpExecuteTimeOutV2(1000000)",
            "aclrtSetOpExecuteTimeOutV2(2000000) fails with 500000",
            "aclrtSetOpExecuteTimeOutV2(3000000)",
        ], found
    """)


@pytest.mark.full
def test_what_a_product_rounds_to_is_seen_in_its_result(ascend: Run) -> None:
    ascend("""
        a, b = torch.randn(64, 64), torch.randn(64, 64)
        exact, errors = a.double() @ b.double(), []
        for hf32 in (False, True):
            torch.npu.matmul.allow_hf32 = hf32
            errors.append(float(((a.npu() @ b.npu()).cpu() - exact).abs().max()))
        assert errors[0] < 1e-5 < 1e-3 < errors[1] < 1e-1, errors
    """)


@pytest.mark.full
def test_a_network_for_images_trains_as_on_the_cpu(ascend: Run) -> None:
    ascend("""
        from torch import nn
        torch.npu.conv.allow_hf32 = False

        def trained(device):
            torch.manual_seed(0)
            model = nn.Sequential(
                nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ReLU(), nn.BatchNorm2d(8),
                nn.Conv2d(8, 8, (3, 1), dilation=2, groups=4, bias=False), nn.BatchNorm2d(8), nn.MaxPool2d(3, 2, padding=1),
                nn.Flatten(), nn.Dropout(0.0), nn.Linear(24, 5),
            ).to(device)
            optimizer = torch.optim.AdamW(model.parameters(), 1e-2, eps=1e-3)
            losses = []
            for _ in range(3):
                x, y = torch.randn(4, 3, 12, 12).to(device), torch.randint(0, 5, (4,)).to(device)
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            model.eval()
            return [torch.tensor(losses), model(x).detach().cpu(), *(value.cpu() for value in model.state_dict().values())]

        for mine, theirs in zip(trained("npu"), trained("cpu")):
            assert torch.allclose(mine, theirs, rtol=1e-4, atol=1e-5), (mine, theirs)
        assert not calls("aclop"), "all of it is computed"
    """)


@pytest.mark.full
def test_dropout_draws_as_it_is_seeded(ascend: Run) -> None:
    ascend("""
        x = torch.ones(1000).npu()

        def drawn(seed):
            torch.manual_seed(seed)
            return torch.dropout(x, 0.25, True).cpu()

        assert torch.equal(drawn(1), drawn(1)) and not torch.equal(drawn(1), drawn(2))
        assert set(drawn(1).tolist()) == {0.0, torch.tensor(1 / 0.75).item()}
        assert 0.2 < float((drawn(1) == 0).float().mean()) < 0.3
    """)


@pytest.mark.full
def test_a_fresh_process_finds_torch_npu_by_itself(ascend_fresh: Run) -> None:
    assert ascend_fresh("-c", "import torch; print(torch.accelerator.current_accelerator())").split()[-1] == "npu"


@pytest.mark.full
def test_products_of_vectors_are_right(ascend: Run) -> None:
    """torch_npu hands vectors on as they are."""
    ascend("""
        shapes = [((6,), (6,)), ((6,), (6, 5)), ((4, 6), (6,)), ((3, 4, 6), (6,)), ((6,), (3, 6, 5)), ((2, 4, 6), (6, 5))]
        for left, right in shapes:
            a, b = torch.randn(left), torch.randn(right)
            found = a.npu() @ b.npu()
            assert found.shape == (a @ b).shape and torch.allclose(found.cpu(), a @ b, atol=1e-5), (left, right)
            found = torch.empty((a @ b).shape).npu()
            torch.matmul(a.npu(), b.npu(), out=found)
            assert torch.allclose(found.cpu(), a @ b, atol=1e-5), (left, right)
        a, x, y = torch.randn(4, 6), torch.randn(6), torch.randn(6)
        assert torch.allclose(torch.mv(a.npu(), x.npu()).cpu(), a @ x, atol=1e-5)
        assert torch.allclose(torch.dot(x.npu(), y.npu()).cpu(), x @ y, atol=1e-5)
    """)
