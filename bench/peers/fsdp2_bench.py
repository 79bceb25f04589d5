"""Milliseconds per microbatch of PyTorch's FSDP2 and of Megatron-FSDP v2, on the workloads of step_bench.

  torchrun --nproc-per-node=2 fsdp2_bench.py --workloads=mlp4 --modes=local-graph,eager,graph-rbf16
  torchrun --nproc-per-node=2 fsdp2_bench.py --modes=mfsdp-graph --megatron_lm=DIR

All bf16 compute without biases, fp32 weights in the optimizer's place. A microbatch is forward and backward with random
weights and inputs; nothing is cleared between microbatches in which gradients accumulate. measuring.py says what a row
holds. An error in one mode becomes the row's `error`, and the next mode runs.
"""

import dataclasses
import functools
import gc
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

import measuring
from torch_workloads import WORKLOADS, LanguageModel

GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Mode:
    """Settings of one measurement."""

    what: str
    sharding: str = "fsdp2"  # "none": one GPU's work alone; "fsdp2" or "megatron"
    wire: str = "f32"  # dtype of the reduce-scatter
    accumulates: bool = True  # otherwise each microbatch replaces the gradients
    graph: bool = False  # forward and backward are one CUDA graph
    compiled: bool = False  # torch.compile for each layer
    keeps_weights: bool = False  # reshard_after_forward=False
    holds_weights: bool = False  # and reshard_after_backward=False: gathered once a step
    group_memory: bool = False  # communication buffers from the process group's allocator
    symmetric: bool = False  # communication buffers in NCCL's symmetric memory
    zero_cta: bool = False  # NCCL may use copy engines instead of SMs
    sum_only: bool = False  # sums and scales instead of averaging, as zero-copy reductions need
    own_reduce_group: bool = False  # reduce-scatter on a communicator of its own

    @property
    def program(self):
        return "megatron_fsdp" if self.sharding == "megatron" else "fsdp2"


def _modes():
    local = Mode("one GPU's work, no communication, gradients replaced", sharding="none", wire="none",
                 accumulates=False)
    eager = Mode("as FSDP2 comes")
    bf16 = Mode("bf16 reduce-scatter, fp32 sums", wire="bf16")
    graph = dataclasses.replace(bf16, graph=True)
    compiled = dataclasses.replace(graph, compiled=True)
    copies = dict(group_memory=True, zero_cta=True, sum_only=True)
    megatron = Mode("Megatron-FSDP v2, fp32 main weights and gradients", sharding="megatron", wire="bf16")

    def variant(base, what, **changes):
        return dataclasses.replace(base, what=f"{base.what}; {what}", **changes)

    return {
        "local": local,
        "local-graph": variant(local, "CUDA graph", graph=True),
        "local-compile-graph": variant(local, "compiled, CUDA graph", graph=True, compiled=True),
        "eager": eager,
        "eager-rbf16": bf16,
        "eager-rbf16-keep": variant(bf16, "weights kept for backward", keeps_weights=True),
        "graph": variant(eager, "CUDA graph", graph=True),
        "graph-rbf16": variant(graph, "CUDA graph"),
        "graph-rbf16-keep": variant(graph, "CUDA graph; weights kept for backward", keeps_weights=True),
        "graph-rbf16-hold": variant(graph, "CUDA graph; weights gathered once a step", keeps_weights=True,
                                    holds_weights=True),
        "graph-rbf16-assign": variant(graph, "CUDA graph; gradients replaced", accumulates=False),
        "compile-rbf16": variant(bf16, "compiled", compiled=True),
        "compile-graph-rbf16": variant(compiled, "compiled, CUDA graph"),
        "compile-graph-rbf16-keep": variant(compiled, "compiled, CUDA graph; weights kept for backward",
                                            keeps_weights=True),
        "compile-graph-rbf16-hold": variant(compiled, "compiled, CUDA graph; weights gathered once a step",
                                            keeps_weights=True, holds_weights=True),
        "graph-rbf16-sep": variant(graph, "CUDA graph; reduce-scatter on a communicator of its own",
                                   own_reduce_group=True),
        "graph-rbf16-alloc": variant(graph, "CUDA graph; buffers from the process group", group_memory=True),
        "graph-rbf16-zcta": variant(graph, "CUDA graph; copy engines", **copies),
        "eager-rbf16-zcta": variant(bf16, "copy engines", **copies),
        "eager-rbf16-symm": variant(bf16, "symmetric memory", symmetric=True, sum_only=True),
        "graph-rbf16-symm": variant(graph, "CUDA graph; symmetric memory", symmetric=True, sum_only=True),
        "mfsdp": megatron,
        "mfsdp-graph": variant(megatron, "CUDA graph", graph=True),
        "mfsdp-symm": variant(megatron, "symmetric memory, zero-CTA group", symmetric=True, zero_cta=True),
        "mfsdp-symm-graph": variant(megatron, "CUDA graph; symmetric memory, zero-CTA group", graph=True,
                                    symmetric=True, zero_cta=True),
    }


MODES = _modes()


# ---- sharding ----


class Unavailable(Exception):
    """This installation lacks what a mode needs."""


@functools.cache
def zero_cta_mesh():
    """Of a process group, one for the whole program, whose NCCL may use copy engines instead of SMs."""
    options = dist.ProcessGroupNCCL.Options()
    options.config.cta_policy = dist.ProcessGroupNCCL.NCCL_CTA_POLICY_ZERO
    group = dist.new_group(backend="nccl", pg_options=options)
    dist.barrier(group=group, device_ids=[torch.cuda.current_device()])
    return DeviceMesh.from_group(group, "cuda")


def set_on_units(model, setter, *values):
    if not hasattr(FSDPModule, setter):
        raise Unavailable(f"PyTorch {torch.__version__} has no FSDPModule.{setter}")
    for module in model.modules():
        if isinstance(module, FSDPModule):
            getattr(module, setter)(*values)


def shard_fsdp2(model, mode):
    options = {"mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16
                                                 if mode.wire == "bf16" else torch.float32)}
    if mode.zero_cta:
        options["mesh"] = zero_cta_mesh()
    if mode.keeps_weights:
        options["reshard_after_forward"] = False
    for layer in model.layers:
        fully_shard(layer, **options)
    fully_shard(model, **options)
    if mode.holds_weights:
        set_on_units(model, "set_reshard_after_backward", False)
    if mode.group_memory:
        set_on_units(model, "set_allocate_memory_from_process_group_for_comm", True)
    if mode.sum_only:
        set_on_units(model, "set_force_sum_reduction_for_comms", True)
    if mode.symmetric:
        set_on_units(model, "set_symm_mem_for_comm")
    if mode.own_reduce_group:
        if not hasattr(model, "set_separate_reduce_scatter_group"):
            raise Unavailable(f"PyTorch {torch.__version__} has no FSDPModule.set_separate_reduce_scatter_group")
        model.set_separate_reduce_scatter_group(True)  # of all units below it


def shard_megatron(model, mode, megatron_lm):
    if not megatron_lm:
        raise Unavailable("Megatron-FSDP needs --megatron_lm=DIR, a checkout of Megatron-LM")
    sys.path.insert(0, os.path.join(megatron_lm, "megatron/core/distributed/fsdp/src"))
    from megatron_fsdp.experimental import Placements, fully_shard as shard, fully_shard_context
    from megatron_fsdp.mixed_precision import MixedPrecisionPolicy as Precision
    from torch.distributed.tensor import Shard

    model.to(torch.bfloat16)
    mesh = zero_cta_mesh() if mode.zero_cta else init_device_mesh("cuda", (dist.get_world_size(),))
    precision = Precision(main_params_dtype=torch.float32, main_grads_dtype=torch.float32)
    placements = Placements(dp_axes=[0], parameter=[Shard(0)], gradient=[Shard(0)], optimizer=[Shard(0)])
    options = {"mesh": mesh, "placements": placements, "mixed_precision_policy": precision}
    device = torch.device("cuda", torch.cuda.current_device())
    with fully_shard_context(device=device, use_symmetric_memory=mode.symmetric):
        for layer in model.layers:
            shard(layer, **options)
        if isinstance(model, LanguageModel):  # the other models have no parameters outside their layers
            shard(model, **options)


# ---- measuring ----


def microbatch(workload, mode):
    """A function that runs forward and backward once."""
    replaced = [x for x in workload.inputs if x.requires_grad]
    if not mode.accumulates:
        replaced += list(workload.model.parameters())

    def run():
        for tensor in replaced:
            tensor.grad = None
        workload.model(*workload.inputs).backward()

    return run


def captured(run):
    """A CUDA graph of run(). Gradients that accumulate are there before it: its replays add to them in place."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(5):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    dist.barrier(device_ids=[torch.cuda.current_device()])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        run()
    return graph


def mean_over_ranks(value):
    total = torch.tensor(value, dtype=torch.float64, device="cuda")
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


def run_mode(make_workload, mode, arguments, taken_before):
    torch._dynamo.reset()
    torch.manual_seed(0)
    with torch.device("cuda"):
        workload = make_workload()
    model = workload.model
    if mode.sharding == "none":
        model.to(torch.bfloat16)
    elif mode.sharding == "fsdp2":
        shard_fsdp2(model, mode)
    else:
        shard_megatron(model, mode, arguments.megatron_lm)
    if mode.compiled:
        for layer in model.layers:
            layer.compile()
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    run = microbatch(workload, mode)
    graph = captured(run) if mode.graph else None
    dist.barrier(device_ids=[torch.cuda.current_device()])
    row = measuring.measure(run if graph is None else graph.replay, torch.cuda.synchronize, mean_over_ranks,
                            arguments.batches, arguments.seconds)
    return row | {
        "teraflops": workload.flops / row["ms_median"] * 1e-9,
        "peak_gib": torch.cuda.max_memory_allocated() / GIB,
        "taken_gib": (device_bytes_taken() - taken_before) / GIB,
        "wire": mode.wire,
        "accumulate": "f32" if mode.accumulates else "none",
        "keeps_weights": mode.keeps_weights or mode.sharding == "none",
    }


def device_bytes_taken():
    free, total = torch.cuda.mem_get_info()
    return total - free


def reason(error):
    lines = [line for line in str(error).splitlines() if line.strip()] or [""]
    return lines[0][:300] if isinstance(error, Unavailable) else f"{type(error).__name__}: {lines[0][:300]}"


def main():
    arguments = measuring.parse_arguments(
        __doc__, WORKLOADS, MODES, ["mlp4s", "mlp4", "seed4"],
        ["local-graph", "eager", "graph-rbf16", "graph-rbf16-keep", "graph-rbf16-hold"],
        lambda parser: parser.add_argument("--megatron_lm", default="", help="checkout of Megatron-LM, for mfsdp*"))
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    taken_before = device_bytes_taken()  # by others and this process's context
    dist.init_process_group("nccl")
    versions = {"torch": torch.__version__, "cuda": torch.version.cuda,
                "nccl": ".".join(map(str, torch.cuda.nccl.version()))}
    for workload in arguments.workloads:
        for name in arguments.modes:
            mode = MODES[name]
            start = time.perf_counter()
            row = {"program": mode.program, "workload": workload, "mode": name}
            try:
                row |= run_mode(WORKLOADS[workload], mode, arguments, taken_before) | {"versions": versions}
            except Exception as error:  # whatever a mode's libraries raise is the reason in its row
                row |= {"error": reason(error)}
            gc.collect()
            torch.cuda.empty_cache()
            if dist.get_rank() == 0:
                measuring.emit(row | {"run_seconds": time.perf_counter() - start}, arguments.json)
    dist.barrier(device_ids=[torch.cuda.current_device()])
    # Destroying communicators that a graph used can wait for that graph for ever.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
