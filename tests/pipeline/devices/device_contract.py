"""Tests that every device passes: subclass `DeviceContract` and define the `device` fixture."""

import numpy as np
import pytest

from hdgemm.fortran import getrf
from hdgemm.pipeline.devices.interchanges import moves_of
from hdgemm.pipeline.devices.protocol import DONE, Block, Tile, Triangle
from tests.reference import DTYPES, assert_close_in_eps, op


def random(rng, shape, dtype):
    x = rng.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        x = x + 1j * rng.standard_normal(shape)
    return x.astype(dtype)


class DeviceContract:
    """Each test allocates its own memory and frees it."""

    #: Whether the kernel can write C into staging, as the first strategies do.
    writes_staging = True

    @pytest.fixture
    def device(self):
        raise NotImplementedError

    @pytest.fixture
    def taken(self, device):
        buffers = []
        yield buffers
        device.synchronize()
        for buffer in buffers:
            device.free(buffer)

    def dtypes(self, device):
        return DTYPES

    def tile(self, device, taken, operand, shape, dtype, *, trans=False, staging=False):
        dtype = np.dtype(dtype)
        rows, cols = shape
        nbytes = max(1, device.slot_bytes(operand, rows, cols, dtype))
        taken.append(device.allocate_staging(nbytes) if staging else device.allocate(nbytes))
        return Tile(operand, taken[-1], rows, cols, cols, dtype, trans)

    def staged(self, device, taken, values):
        taken.append(device.allocate_staging(max(1, values.nbytes)))
        view = np.ndarray(values.shape, values.dtype, taken[-1].array)
        view[...] = values
        return view

    def loaded(self, device, taken, operand, values, *, trans=False, cuts=1):
        """Upload `values` (stored orientation) in `cuts` pieces of rows; return the tile, last."""
        tile = self.tile(device, taken, operand, values.shape, values.dtype, trans=trans)
        source = self.staged(device, taken, values)
        last = DONE
        for rows in np.array_split(np.arange(len(values)), min(cuts, len(values))):
            part = Block(tile, int(rows[0]), 0, len(rows), values.shape[1])
            last = device.upload(source[rows[0] : rows[-1] + 1], part, [])
        return tile, last

    def fetched(self, device, taken, tile, after):
        target = self.staged(device, taken, np.zeros((tile.rows, tile.cols), tile.dtype))
        whole = Block(tile, 0, 0, tile.rows, tile.cols)
        device.download(whole, target, [after]).wait()
        return target.copy()

    def whole(self, tile):
        return Block(tile, 0, 0, tile.rows, tile.cols)

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("trans_a", [False, True])
    @pytest.mark.parametrize("trans_b", [False, True])
    def test_multiplies_whole_tiles(self, device, taken, dtype, trans_a, trans_b):
        if dtype not in self.dtypes(device):
            pytest.skip(f"{device.spec.name} has no {dtype}")
        rng = np.random.default_rng(1)
        m, n, k = 37, 29, 41
        a = random(rng, (k, m) if trans_a else (m, k), dtype)
        b = random(rng, (n, k) if trans_b else (k, n), dtype)
        a_tile, a_done = self.loaded(device, taken, "A", a, trans=trans_a, cuts=3)
        b_tile, b_done = self.loaded(device, taken, "B", b, trans=trans_b, cuts=2)
        c_tile = self.tile(device, taken, "C", (m, n), dtype)
        done = device.gemm(
            1.5, self.whole(a_tile), self.whole(b_tile), 0.0, self.whole(c_tile), [a_done, b_done]
        )
        c = self.fetched(device, taken, c_tile, done)
        assert_close_in_eps(c, op(a, trans_a), op(b, trans_b), alpha=1.5)

    @pytest.mark.parametrize("trans", [False, True])
    def test_accumulates_over_blocks_of_k(self, device, taken, trans):
        rng = np.random.default_rng(2)
        m, n, k, kb = 33, 18, 50, 17
        a, b = random(rng, (m, k), "float64"), random(rng, (k, n), "float64")
        stored_a, stored_b = (a.T.copy(), b.T.copy()) if trans else (a, b)
        a_tile, a_done = self.loaded(device, taken, "A", stored_a, trans=trans)
        b_tile, b_done = self.loaded(device, taken, "B", stored_b, trans=trans)
        c_tile = self.tile(device, taken, "C", (m, n), "float64")
        after = [a_done, b_done]
        for k0 in range(0, k, kb):
            depth = min(kb, k - k0)
            a_block = Block(a_tile, k0, 0, depth, m) if trans else Block(a_tile, 0, k0, m, depth)
            b_block = Block(b_tile, 0, k0, n, depth) if trans else Block(b_tile, k0, 0, depth, n)
            beta = 0.0 if k0 == 0 else 1.0
            after = [device.gemm(-0.5, a_block, b_block, beta, self.whole(c_tile), after)]
        c = self.fetched(device, taken, c_tile, after[0])
        assert_close_in_eps(c, a, b, alpha=-0.5)

    def test_multiplies_blocks_of_larger_tiles(self, device, taken):
        rng = np.random.default_rng(3)
        gm, gn, _ = device.spec.granularity
        m, n, k = 2 * gm + 5, 2 * gn + 3, 23
        a, b = random(rng, (gm + m, k), "float64"), random(rng, (k, gn + n), "float64")
        a_tile, a_done = self.loaded(device, taken, "A", a)
        b_tile, b_done = self.loaded(device, taken, "B", b)
        c_tile = self.tile(device, taken, "C", (m, n), "float64")
        done = device.gemm(
            1.0, Block(a_tile, gm, 0, m, k), Block(b_tile, 0, gn, k, n), 0.0,
            self.whole(c_tile), [a_done, b_done],
        )  # fmt: skip
        assert_close_in_eps(self.fetched(device, taken, c_tile, done), a[gm:], b[:, gn:])

    def test_beta_zero_never_reads_c(self, device, taken):
        a = np.ones((5, 4))
        c_tile, c_done = self.loaded(device, taken, "C", np.full((5, 6), np.nan))
        a_tile, a_done = self.loaded(device, taken, "A", a)
        b_tile, b_done = self.loaded(device, taken, "B", np.ones((4, 6)))
        done = device.gemm(
            1.0, self.whole(a_tile), self.whole(b_tile), 0.0, self.whole(c_tile),
            [a_done, b_done, c_done],
        )  # fmt: skip
        np.testing.assert_array_equal(
            self.fetched(device, taken, c_tile, done), np.full((5, 6), 4.0)
        )

    def test_nan_comes_out_where_it_goes_in(self, device, taken):
        a = np.ones((9, 7))
        a[3, 2] = np.nan
        a_tile, a_done = self.loaded(device, taken, "A", a)
        b_tile, b_done = self.loaded(device, taken, "B", np.ones((7, 11)))
        c_tile = self.tile(device, taken, "C", (9, 11), "float64")
        done = device.gemm(
            1.0, self.whole(a_tile), self.whole(b_tile), 0.0, self.whole(c_tile), [a_done, b_done]
        )
        c = self.fetched(device, taken, c_tile, done)
        assert np.isnan(c[3]).all()
        assert (np.delete(c, 3, axis=0) == 7.0).all()

    def test_writes_c_into_staging(self, device, taken):
        rng = np.random.default_rng(4)
        a, b = random(rng, (20, 9), "float64"), random(rng, (9, 15), "float64")
        a_tile, a_done = self.loaded(device, taken, "A", a)
        b_tile, b_done = self.loaded(device, taken, "B", b)
        c_tile = self.tile(device, taken, "C", (20, 15), "float64", staging=True)
        device.gemm(
            1.0, self.whole(a_tile), self.whole(b_tile), 0.0, self.whole(c_tile), [a_done, b_done]
        ).wait()
        c = np.ndarray((20, 15), np.float64, c_tile.buffer.array)
        assert_close_in_eps(c, a, b)

    def test_downloads_slabs(self, device, taken):
        values = np.arange(40.0).reshape(10, 4)
        tile, done = self.loaded(device, taken, "C", values)
        target = self.staged(device, taken, np.zeros((3, 4)))
        device.download(Block(tile, 5, 0, 3, 4), target, [done]).wait()
        np.testing.assert_array_equal(target, values[5:8])

    def triangle(self, n, dtype, *, lower, unit):
        """A well-conditioned triangle; NaN in everything that a solve must not read."""
        rng = np.random.default_rng(n)
        a = random(rng, (n, n), dtype) / n
        a[np.arange(n), np.arange(n)] = 2
        used = np.tril(a) if lower else np.triu(a)
        other = np.triu_indices(n, 1) if lower else np.tril_indices(n, -1)
        a[other] = np.nan
        if unit:
            a[np.arange(n), np.arange(n)] = np.nan
            used[np.arange(n), np.arange(n)] = 1
        return a, used

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("side", ["L", "R"])
    @pytest.mark.parametrize("trans", ["N", "T", "C"])
    def test_solves_with_triangles(self, device, taken, dtype, side, trans):
        if dtype not in self.dtypes(device):
            pytest.skip(f"{device.spec.name} has no {dtype}")
        for lower, unit in ((True, True), (False, False), (True, False)):
            n, across = 67, 19
            shape = (n, across) if side == "L" else (across, n)
            a, used = self.triangle(n, dtype, lower=lower, unit=unit)
            b = random(np.random.default_rng(5), shape, dtype)
            a_tile, a_done = self.loaded(device, taken, "C", np.pad(a, 3))
            b_tile, b_done = self.loaded(device, taken, "C", np.pad(b, 2, constant_values=7))
            a_block, b_block = Block(a_tile, 3, 3, n, n), Block(b_tile, 2, 2, *shape)
            form = Triangle(side, lower, trans, unit)
            done = device.trsm(a_block, b_block, form, [a_done, b_done])
            found = self.fetched(device, taken, b_tile, done)
            wide = np.result_type(dtype, np.float64)
            x = found[2:-2, 2:-2].astype(wide)
            factor = {"N": used, "T": used.T, "C": used.conj().T}[trans].astype(wide)
            product = factor @ x if side == "L" else x @ factor
            eps = np.finfo(dtype).eps
            scale = np.abs(factor).sum() * max(1, np.abs(x).max())
            assert np.abs(product - b).max() <= 4 * eps * scale
            found[2:-2, 2:-2] = 7
            assert (found == 7).all()  # nothing else of the tile is written

    def test_solves_with_one_row_and_with_none(self, device, taken):
        a_tile, a_done = self.loaded(device, taken, "C", np.full((1, 1), 4.0))
        b_tile, b_done = self.loaded(device, taken, "C", np.full((1, 3), 2.0))
        form = Triangle()
        done = device.trsm(self.whole(a_tile), self.whole(b_tile), form, [a_done, b_done])
        done = device.trsm(Block(a_tile, 0, 0, 0, 0), Block(b_tile, 0, 0, 0, 3), form, [done])
        done = device.trsm(Block(a_tile, 0, 0, 1, 1), Block(b_tile, 0, 0, 1, 0), form, [done])
        np.testing.assert_array_equal(
            self.fetched(device, taken, b_tile, done), np.full((1, 3), 0.5)
        )

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("axis", [0, 1])
    def test_permutes_rows_and_columns(self, device, taken, dtype, axis):
        if dtype not in self.dtypes(device):
            pytest.skip(f"{device.spec.name} has no {dtype}")
        values = random(np.random.default_rng(6), (12, 11), dtype)
        tile, done = self.loaded(device, taken, "C", values)
        # Seed 001, section 6.6: these pivots are the permutation [7, 1, 4, 3, 5, 8, 2, 6].
        moves = moves_of(np.array([7, 7, 4, 4, 5, 8, 7, 8]) - 1)
        block = Block(tile, 2, 1, 9, 8) if axis == 0 else Block(tile, 2, 1, 8, 9)
        done = device.permute(block, moves, [done], axis=axis)
        done = device.permute(block, moves_of(np.arange(4)), [done], axis=axis)  # moves nothing
        part = values[2 : 2 + block.rows, 1 : 1 + block.cols]
        rows = part if axis == 0 else part.T
        rows[:8] = rows[[6, 0, 3, 2, 4, 7, 1, 5]]
        np.testing.assert_array_equal(self.fetched(device, taken, tile, done), values)

    @pytest.mark.parametrize("operand", ["A", "B", "C"])
    def test_copies_between_tiles(self, device, taken, operand):
        """What is copied into a tile of A or B is what `gemm` multiplies."""
        rng = np.random.default_rng(7)
        n, gm, gn = 41, *device.spec.granularity[:2]
        origin = {"A": (gm, 2), "B": (2, gn), "C": (1, 2)}[operand]
        values = random(rng, (n + 3, n + 4), "float64")
        source, done = self.loaded(device, taken, "C", values)
        tile = self.tile(device, taken, operand, (gm + 2 + n, gn + 2 + n), "float64")
        target, wanted = Block(tile, *origin, n, n), values[3:, 4:]
        done = device.copy(Block(source, 3, 4, n, n), target, [done])
        if operand != "C":
            factor = random(rng, (n, n), "float64")
            other, other_done = self.loaded(device, taken, "AB"[operand == "A"], factor)
            c_tile = self.tile(device, taken, "C", (n, n), "float64")
            pair = (target, self.whole(other)) if operand == "A" else (self.whole(other), target)
            done = device.gemm(1.0, *pair, 0.0, self.whole(c_tile), [done, other_done])
            pair = (wanted, factor) if operand == "A" else (factor, wanted)
            assert_close_in_eps(self.fetched(device, taken, c_tile, done), *pair)
        else:
            found = self.staged(device, taken, np.zeros((n, n)))
            device.download(target, found, [done]).wait()
            np.testing.assert_array_equal(found, wanted)

    def native(self, device):
        if not hasattr(device, "getrf"):
            pytest.skip(f"{device.spec.name} leaves panels to the host")
        return min(device.panel_columns, 19)

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_factors_panels(self, device, taken, dtype):
        width = self.native(device)
        if dtype not in self.dtypes(device):
            pytest.skip(f"{device.spec.name} has no {dtype}")
        rows = 3 * width + 1
        values = random(np.random.default_rng(8), (rows + 2, width + 3), dtype)
        values[:, 7] = 0
        tile, done = self.loaded(device, taken, "C", values)
        pivots, zero = device.getrf(Block(tile, 2, 3, rows, width), [done])
        found = self.fetched(device, taken, tile, DONE)
        np.testing.assert_array_equal(found[:2], values[:2])
        np.testing.assert_array_equal(found[:, :3], values[:, :3])
        expected = np.array(values[2:, 3:], order="F")
        wanted, wanted_zero = getrf(expected)
        np.testing.assert_array_equal(pivots, wanted)
        assert zero == wanted_zero == 5
        eps = np.finfo(dtype).eps
        assert np.abs(found[2:, 3:] - expected).max() <= 64 * width * eps * np.abs(values).max()

    @pytest.mark.parametrize("dtype", ["complex64", "complex128"])
    def test_conjugates_blocks(self, device, taken, dtype):
        if dtype not in self.dtypes(device):
            pytest.skip(f"{device.spec.name} has no {dtype}")
        values = random(np.random.default_rng(10), (9, 11), dtype)
        tile, done = self.loaded(device, taken, "C", values)
        done = device.conjugate(Block(tile, 2, 3, 5, 4), [done])
        done = device.conjugate(self.whole(tile), [done])
        expected = values.conj()
        expected[2:7, 3:7] = values[2:7, 3:7]
        np.testing.assert_array_equal(self.fetched(device, taken, tile, done), expected)

    @pytest.mark.parametrize("scale", [1.0, 1e-30])
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_factors_panels_by_reflectors(self, device, taken, dtype, scale):
        width = self.native(device)
        if dtype not in self.dtypes(device):
            pytest.skip(f"{device.spec.name} has no {dtype}")
        rows = 3 * width + 1
        values = random(np.random.default_rng(8), (rows + 2, width + 3), dtype)
        values[:, 7] = 0
        values *= np.dtype(dtype).type(scale)
        tile, done = self.loaded(device, taken, "C", values)
        tau = device.geqrf(Block(tile, 2, 3, rows, width), [done])
        found = self.fetched(device, taken, tile, DONE)
        np.testing.assert_array_equal(found[:2], values[:2])
        np.testing.assert_array_equal(found[:, :3], values[:, :3])
        part = found[2:, 3:].astype("complex128")
        q = np.eye(rows, dtype="complex128")
        for col in reversed(range(width)):
            v = np.concatenate([np.zeros(col), [1], part[col + 1 :, col]])
            q -= tau[col] * np.outer(v, v.conj() @ q)
        bound = 64 * width * np.finfo(dtype).eps
        assert np.abs(q.conj().T @ q - np.eye(rows)).max() <= bound
        off = np.abs(q @ np.triu(part) - values[2:, 3:]).max()
        assert off <= bound * np.abs(values).max()

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_factors_diagonal_blocks(self, device, taken, dtype):
        n = self.native(device)
        if dtype not in self.dtypes(device):
            pytest.skip(f"{device.spec.name} has no {dtype}")
        x = random(np.random.default_rng(9), (n, n), dtype)
        values = np.pad((x @ x.conj().T + n * np.eye(n)).astype(dtype), 2)
        tile, done = self.loaded(device, taken, "C", values)
        block = Block(tile, 2, 2, n, n)
        assert device.potrf(block, [done]) == 0
        found = np.tril(self.fetched(device, taken, tile, DONE)[2:-2, 2:-2])
        eps = np.finfo(dtype).eps
        assert (
            np.abs(found @ found.conj().T - values[2:-2, 2:-2]).max()
            <= 8 * n * eps * np.abs(values).max()
        )
        values[6, 6] = -1.0
        source = self.staged(device, taken, values)
        done = device.upload(source, self.whole(tile), [])
        assert device.potrf(block, [done]) == 5

    def test_staging_is_page_aligned(self, device, taken):
        taken.append(device.allocate_staging(10_000))
        assert taken[-1].array.ctypes.data % 4096 == 0
        assert taken[-1].array.nbytes >= 10_000
