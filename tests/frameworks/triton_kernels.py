# mypy: ignore-errors
# ruff: noqa: N803
"""A kernel for Triton, and what tests do with it in processes of their own."""

import json
import warnings

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@triton.jit
def add(X, Y, Z, n, SIZE: tl.constexpr):
    offsets = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    mask = offsets < n
    tl.store(Z + offsets, tl.load(X + offsets, mask) + tl.load(Y + offsets, mask), mask)


@triton.jit
def wrong(X, SIZE: tl.constexpr):
    tl.store(X + tl.arange(0, SIZE), no_such_name)  # noqa: F821


def compile_add(size=256, **options):
    """The kernel, without a GPU; nothing of it is kept in memory."""
    signature = {"X": "*fp32", "Y": "*fp32", "Z": "*fp32", "n": "i32", "SIZE": "constexpr"}
    source = ASTSource(fn=add, signature=signature, constexprs={(4,): size})
    return triton.compile(source, target=GPUTarget("cuda", 80, 32), options=options)


def compile_wrong():
    signature = {"X": "*fp32", "SIZE": "constexpr"}
    source = ASTSource(fn=wrong, signature=signature, constexprs={(1,): 64})
    return triton.compile(source, target=GPUTarget("cuda", 80, 32))


def compile_told(**more):
    """Compile, and tell the digest-worthy: the binary, and the warnings of ptocache."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        kernel = compile_add(**more)
    texts = [str(item.message) for item in found if "ptocache" in str(item.message)]
    elf = kernel.asm["cubin"][:4] == b"\x7fELF"
    print(json.dumps({"cubin": kernel.asm["cubin"].hex(), "elf": elf, "warnings": texts}))
