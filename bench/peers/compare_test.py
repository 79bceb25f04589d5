"""Tests of compare with programs that only print what a GPU would have given."""

import contextlib
import importlib.machinery
import importlib.util
import io
import json
import os
import pathlib
import sys
import tempfile
import unittest
from unittest import mock

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import comparison  # noqa: E402 (found beside this file)
import measuring  # noqa: E402


def load(name):
    """A program without the ending .py."""
    loader = importlib.machinery.SourceFileLoader(name, str(HERE / name))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
    sys.modules[name] = module
    loader.exec_module(module)
    return module


compare = load("compare")


def row(program, mode, ms, workload="mlp4", wire="bf16", accumulate="f32", **more):
    result = {"program": program, "workload": workload, "mode": mode, "ms_median": ms, "ms_low": ms, "ms_high": ms,
              "peak_gib": 1.5, "taken_gib": 2.5, "teraflops": 500.0, "wire": wire, "accumulate": accumulate}
    return result | ({"keeps_weights": False} if program != "reprise" else {"weight_slots": 2}) | more


def local(program, ms, **more):
    return row(program, "local", ms, wire="none", accumulate="none", **more)


def figure(mode, ms, slots=2, span=4, transport="nccl", workload="mlp4", equal=True):
    """One object of what `step_bench --json` writes."""
    return {"workload": workload, "mode": mode, "transports": transport, "weight_slots": slots,
            "microbatches_per_graph": span, "ms_median": ms, "ms_low": ms - 1, "ms_high": ms + 1, "teraflops": 600.0,
            "requested_bytes": 2**31, "rounding_bytes": 2**28, "recording_bytes": 2**28, "communication_bytes": 2**29,
            "results_equal": equal}


class RatiosTest(unittest.TestCase):

    def ratios(self, rows, workload="mlp4"):
        return comparison.ratios(rows, workload)

    def test_resharding_peers_are_compared_with_two_slots_and_all_peers_with_free_slots(self):
        rows = [local("fsdp2", 16.0), row("fsdp2", "graph", 25.0), row("jax", "fsdp", 30.0),
                row("fsdp2", "graph-keep", 24.0, keeps_weights=True),
                row("reprise", "graph a", 21.0), row("reprise", "graph b", 20.0),
                row("reprise", "graph c", 18.0, weight_slots=4)]
        resharding, anything, two_slots, free, _ = self.ratios(rows)
        self.assertEqual(resharding.value, 25.0 / 20.0)
        self.assertEqual(anything.value, 24.0 / 18.0)
        self.assertEqual(two_slots.value, 20.0 / 16.0)
        self.assertEqual(free.value, 18.0 / 16.0)

    def test_free_slots_may_be_two(self):
        rows = [row("fsdp2", "graph", 30.0), row("reprise", "graph", 20.0),
                row("reprise", "graph", 25.0, weight_slots=4)]
        self.assertEqual(self.ratios(rows)[1].value, 30.0 / 20.0)

    def test_peers_that_do_not_accumulate_or_failed_do_not_count(self):
        rows = [row("reprise", "graph", 20.0), row("fsdp2", "graph", 25.0),
                row("fsdp2", "graph-assign", 10.0, accumulate="none"),
                {"program": "fsdp2", "workload": "mlp4", "mode": "eager", "error": "no"},
                row("fsdp2", "graph", 5.0, workload="seed4")]
        self.assertEqual(self.ratios(rows)[0].value, 25.0 / 20.0)

    def test_our_local_is_compared_with_the_peers(self):
        rows = [local("reprise", 20.0), local("fsdp2", 16.0), local("jax", 32.0)]
        self.assertEqual(self.ratios(rows)[4].value, 20.0 / 16.0)

    def test_targets_are_inclusive(self):
        for ms, passed in ((23.0, True), (22.98, False)):
            ratio = self.ratios([row("reprise", "graph", 20.0), row("fsdp2", "graph", ms)])[0]
            self.assertEqual(ratio.target, 1.15)
            self.assertIs(ratio.passed(), passed)
            self.assertIn("target at least 1.15: " + ("PASS" if passed else "miss"), ratio.text())
        ratio = self.ratios([row("reprise", "graph", 21.0), local("jax", 20.0)])[2]
        self.assertIn("target at most 1.05: PASS", ratio.text())

    def test_what_is_missing_is_said(self):
        ratio = self.ratios([row("reprise", "graph", 20.0)])[0]
        self.assertIsNone(ratio.passed())
        self.assertEqual(ratio.text(), "fastest resharding peer / reprise with two slots: not measured")

    def test_seed4_has_no_target_for_free_slots(self):
        rows = [row("reprise", "graph", 20.0, workload="seed4"), row("jax", "fsdp", 30.0, workload="seed4")]
        self.assertTrue(self.ratios(rows, "seed4")[1].text().endswith(": 1.500, no target"))


class TableTest(unittest.TestCase):

    def test_rows_are_sorted_and_have_ratios(self):
        text = comparison.table([row("fsdp2", "graph", 30.0), row("reprise", "graph", 25.0), local("jax", 20.0),
                                 row("jax", "fsdp", 1.0, workload="seed4")], "mlp4")
        self.assertEqual([line.split() for line in text.splitlines()], [
            ["mlp4:"],
            "program mode ms low high x local x reprise wire accumulate GiB taken GiB TFLOP/s".split(),
            "jax local 20.000 20.000 20.000 1.000 - none none 1.50 2.50 500".split(),
            "reprise graph 25.000 25.000 25.000 1.250 1.000 bf16 f32 1.50 2.50 500".split(),
            "fsdp2 graph 30.000 30.000 30.000 1.500 1.200 bf16 f32 1.50 2.50 500".split()])

    def test_columns_are_aligned(self):
        lines = comparison.table([row("fsdp2", "a-long-mode", 1.0), row("reprise", "x", 100.0)], "mlp4").splitlines()
        self.assertEqual({len(line) for line in lines[1:]}, {len(lines[1])})

    def test_without_figures_the_reason_stands(self):
        text = comparison.table([{"program": "jax", "workload": "mlp4", "mode": "fsdp", "error": "no memory"}], "mlp4")
        self.assertIn("jax fsdp: not measured: no memory", text)

    def test_without_local_or_reprise_there_is_no_ratio(self):
        line = comparison.table([row("fsdp2", "graph", 30.0, peak_gib=None)], "mlp4").splitlines()[2]
        self.assertEqual(line.split(), "fsdp2 graph 30.000 30.000 30.000 - - bf16 f32 - 2.50 500".split())


class RowsOfStepBenchTest(unittest.TestCase):

    def test_memory_is_in_gib_and_settings_are_in_the_mode(self):
        (graph,) = comparison.rows_of_step_bench([figure("graph", 21.0, 4, 1, "symmetric")])
        self.assertEqual((graph["peak_gib"], graph["taken_gib"]), (2.0, 3.0))
        self.assertEqual(graph["mode"], "graph symmetric, 4 slots, 1 a graph")
        self.assertEqual((graph["wire"], graph["accumulate"], graph["weight_slots"]), ("bf16", "f32", 4))

    def test_local_communicates_and_accumulates_nothing(self):
        (alone,) = comparison.rows_of_step_bench([figure("local", 19.0)])
        self.assertEqual((alone["mode"], alone["wire"], alone["accumulate"]), ("local", "none", "none"))

    def test_results_that_differ_are_no_figures(self):
        (graph,) = comparison.rows_of_step_bench([figure("graph", 1.0, equal=False)])
        self.assertNotIn("ms_median", graph)
        self.assertIn("different gradients", graph["error"])


class MeasuringTest(unittest.TestCase):

    def test_a_measurement_lasts_as_asked_and_the_median_is_that_of_one_microbatch(self):
        now, steps = 0.0, []
        # Of a microbatch in the two runs that warm up and choose the count, and in the three batches.
        seconds = iter([9.0, 0.25, 0.5, 0.125, 0.25])

        def step():
            steps[-1] += 1

        def clock():
            return now

        def synchronize():
            nonlocal now
            now += next(seconds) * steps[-1]
            steps.append(0)

        steps.append(0)
        with mock.patch.object(measuring.time, "perf_counter", clock):
            figures = measuring.measure(step, synchronize, lambda value: 2 * value, batches=3, seconds=2.0)
        self.assertEqual(figures, {"ms_median": 250.0, "ms_low": 125.0, "ms_high": 500.0})
        self.assertEqual(steps, [3, 3, 4, 4, 4, 0])  # 2 s over the ranks' mean, 0.5 s

    def test_flops_are_those_of_step_bench(self):
        # 3 products in each layer, forward and two gradients, but none for the input of the first.
        self.assertEqual(measuring.mlp_flops(2, 3, 0, 5, True), 2 * 5 * 3 * 3 * (2 * 3))
        self.assertEqual(measuring.mlp_flops(2, 3, 7, 5, False), 2 * 5 * 3 * 7 * (2 * 2 * 3 - 1))


class CompareTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        environment = mock.patch.dict(os.environ, {"PATH": f"{self.folder}:{os.environ['PATH']}"})
        environment.start()
        self.addCleanup(environment.stop)

    def script(self, name, text):
        path = self.folder / name
        path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
        path.chmod(0o755)
        return path

    def step_bench(self, refuse="none"):
        """Gives `graph` 20 ms, refuses one transport, and notes how it was started."""
        (self.folder / "figures").write_text(json.dumps([figure("local", 19.0), figure("graph", 20.0)]))
        return self.script("step_bench", f'''
echo "$NCCL_GRAPH_MIXING_SUPPORT $*" >>{self.folder}/started
for argument; do
  case "$argument" in
    --transports={refuse}) echo "step_bench: the transport {refuse} cannot be used: all ranks must be on one host; plan" >&2; exit 1;;
    --json=*) cp {self.folder}/figures "${{argument#--json=}}";;
  esac
done''')

    def torchrun(self, *rows, then=""):
        lines = "\n".join(f"echo '{json.dumps(r)}'" for r in rows)
        return self.script("torchrun", f"echo a line of a library\n{lines}\n{then}")

    def compare(self, *arguments, only="step_bench,fsdp2,megatron_fsdp"):
        """Exit code, what was printed, and the JSON."""
        path = self.folder / "result.json"
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            code = compare.main(["--ranks=2", "--workloads=mlp4", f"--only={only}", f"--json={path}",
                                 f"--step_bench={self.folder}/step_bench", *arguments])
        return code, printed.getvalue(), json.loads(path.read_text()) if path.exists() else None

    def test_all_that_is_there_is_in_one_table(self):
        self.step_bench()
        self.torchrun(row("fsdp2", "graph", 30.0, versions={"torch": "2.11.0", "nccl": "2.28.9"}))
        code, text, result = self.compare("--quick")
        self.assertEqual(code, 0, text)
        self.assertRegex(text, r"fsdp2 +graph +30\.000")
        self.assertRegex(text, r"reprise +graph nccl, 2 slots, 4 a graph +20\.000")
        self.assertIn("): 1.500, target at least 1.15: PASS", text)
        self.assertIn("skipped: megatron_fsdp: no --megatron_lm=DIR", text)
        self.assertEqual(result["nccl"], "2.28.9")
        self.assertEqual(result["ratios"]["mlp4"][0]["value"], 1.5)
        self.assertEqual({r["program"] for r in result["rows"]}, {"fsdp2", "reprise"})

    def test_step_bench_runs_once_for_each_transport_and_number_of_slots(self):
        self.step_bench()
        self.compare("--quick", only="step_bench")
        measuring, *started = (self.folder / "started").read_text().splitlines()
        self.assertIn("--modes=local,graph --batches=1 --measure=", measuring)
        costs = measuring.partition("--measure=")[2]
        self.assertEqual([f"--costs={costs} " in line for line in started], [True] * 6)
        settings = [tuple(f"--{flag}={value}" in line for flag, value in
                          (("transports", t), ("weight_slots", s), ("microbatches_per_graph", 4)))
                    for line, (t, s) in zip(started, ((t, s) for t in compare.TRANSPORTS for s in (2, 4)))]
        self.assertEqual(settings, [(True, True, True)] * 6)
        self.assertEqual(["local" in line for line in started], [True] + [False] * 5)

    def test_a_cost_file_that_is_given_is_not_measured(self):
        self.step_bench()
        self.compare("--quick", "--costs=given.json", only="step_bench")
        started = (self.folder / "started").read_text().splitlines()
        self.assertEqual(["--costs=given.json" in line and "--measure" not in line for line in started], [True] * 6)

    def test_settings_of_nccl_are_made_for_step_bench_alone_and_the_callers_win(self):
        self.step_bench()
        self.script("torchrun", f'echo "${{NCCL_GRAPH_MIXING_SUPPORT-unset}}" >>{self.folder}/peer')
        with mock.patch.dict(os.environ):
            os.environ.pop("NCCL_GRAPH_MIXING_SUPPORT", None)
            self.compare("--quick")
            os.environ["NCCL_GRAPH_MIXING_SUPPORT"] = "1"
            self.compare("--quick")
        started = (self.folder / "started").read_text().splitlines()
        self.assertEqual([line[0] for line in started], ["0"] * 7 + ["1"] * 7)
        self.assertEqual((self.folder / "peer").read_text().split(), ["unset", "1"])

    def test_a_refused_transport_is_named_and_not_tried_again(self):
        self.step_bench(refuse="copy_engine")
        code, text, result = self.compare("--quick", only="step_bench")
        self.assertEqual(code, 0, text)
        self.assertIn("copy_engine, 2 slots, 4 a graph: exit code 1: step_bench: the transport copy_engine cannot be used", text)
        self.assertEqual((self.folder / "started").read_text().count("--transports=copy_engine"), 1)
        self.assertEqual((self.folder / "started").read_text().count("--transports=symmetric"), 2)
        self.assertEqual(len([s for s in result["skipped"] if "copy_engine" in s["reason"]]), 2)

    def test_a_program_that_fails_keeps_its_rows_and_gives_its_reason(self):
        self.step_bench()
        self.torchrun(row("fsdp2", "graph", 30.0), {"program": "fsdp2", "workload": "mlp4", "mode": "eager",
                                                    "error": "OutOfMemoryError: 3 GiB"},
                      then="echo '[rank0]: RuntimeError: NCCL is gone'; echo '====='; exit 7")
        code, text, _ = self.compare("--quick")
        self.assertEqual(code, 0, text)
        self.assertRegex(text, r"fsdp2 +graph +30\.000")
        self.assertIn("fsdp2 eager: not measured: OutOfMemoryError: 3 GiB", text)
        self.assertIn("skipped: fsdp2: 6 modes: exit code 7: RuntimeError: NCCL is gone", text)

    def test_a_program_that_hangs_is_ended(self):
        self.torchrun(row("fsdp2", "graph", 30.0), then="sleep 600")
        _, text, _ = self.compare("--quick", "--run_timeout_s=4", only="fsdp2")
        self.assertIn("6 modes: ended after 4 s", text)
        self.assertRegex(text, r"fsdp2 +graph +30\.000")

    def test_what_does_not_fit_the_limit_is_left_out(self):
        self.step_bench()
        self.torchrun(row("fsdp2", "graph", 30.0))
        _, text, _ = self.compare("--quick", "--limit_s=25")  # measuring takes about 22 s, the first run 13 s, fsdp2 31 s
        self.assertRegex(text, r"skipped: fsdp2: 6 modes: takes about \d+ s, but \d+ s are left")
        self.assertRegex(text, r"reprise +graph nccl, 2 slots")

    def test_missing_peers_are_named(self):
        self.step_bench()
        with mock.patch.object(importlib.util, "find_spec", return_value=None), \
                mock.patch.object(compare.shutil, "which", return_value=None):
            code, text, _ = self.compare("--quick", "--megatron_lm=/nowhere", only="step_bench,fsdp2,megatron_fsdp,jax")
        self.assertEqual(code, 0)
        self.assertIn("skipped: fsdp2: there is no torchrun on PATH and no PyTorch", text)
        self.assertIn("skipped: jax: there is no JAX", text)
        self.assertIn("skipped: megatron_fsdp: there is no folder /nowhere/", text)

    def test_without_any_figures_it_fails(self):
        code, text, _ = self.compare(only="step_bench")
        self.assertEqual(code, 1)
        self.assertIn("step_bench is not there; build it, or give --step_bench=PATH", text)
        self.assertIn("compare: nothing was measured", text)

    def test_workloads_that_a_program_lacks_are_named(self):
        self.step_bench()
        _, text, _ = self.compare("--quick", "--workloads=mlp4,llama8", only="step_bench")
        self.assertIn("skipped: step_bench: has no workload llama8", text)
        self.assertIn("--workloads=mlp4 ", (self.folder / "started").read_text())

    def test_wrong_flags_are_one_line(self):
        for flags, message in ((["--workloads=mlp9"], 'there is no "mlp9"; choose from'),
                               (["--ranks=0"], "--ranks is 0 but must be at least 1")):
            printed = io.StringIO()
            with contextlib.redirect_stderr(printed), self.assertRaises(SystemExit):
                compare.parse(["--ranks=2", *flags])
            self.assertIn(message, printed.getvalue().splitlines()[-1])

    def test_modes_are_those_that_the_programs_know(self):
        jax_bench = (HERE / "jax_bench.py").read_text()
        fsdp2_bench = (HERE / "fsdp2_bench.py").read_text()
        for modes in (compare.QUICK_MODES, compare.ALL_MODES):
            for program, names in modes.items():
                for name in names:
                    self.assertIn(f'"{name}": ', jax_bench if program == "jax" else fsdp2_bench)


if __name__ == "__main__":
    unittest.main()
