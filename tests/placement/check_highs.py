"""Random small instances solved by `coterie place` and, as integer programmes, by HiGHS (highspy, from PyPI).

Usage: check_highs.py PROGRAM [INSTANCES [SEED]]. Exit 77, loudly, without highspy.
"""
import json, math, random, subprocess, sys, tempfile, time

try:
    import highspy
    import numpy
except ImportError:
    print("SKIPPED: no highspy and numpy; pip install highspy")
    sys.exit(77)

program, count = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1000
seed = int(sys.argv[3]) if len(sys.argv) > 3 else time.time_ns()
rnd = random.Random(seed)
print("seed", seed)


def draw(kind):
    return [rnd.randrange(6), rnd.randrange(10**6), rnd.lognormvariate(0, 2), rnd.randrange(2000) / 100][kind]


def highs(load, cost, c_layer, c_exp):
    """The least cost of the integer programme (4) of the paper; None where it is infeasible."""
    L, E, S = len(load), len(load[0]), len(cost[0])
    model, scale = highspy.Highs(), max(max(map(max, load)) * max(map(max, cost)), 1)
    model.setOptionValue("output_flag", False)
    model.setOptionValue("mip_rel_gap", 0.0)
    model.setOptionValue("mip_feasibility_tolerance", 1e-9)
    n = L * E * S
    # y of the programme in [0, 1], whole; costs are scaled so that tolerances mean the same for all instances
    for l in range(L):
        for e in range(E):
            for s in range(S):
                model.addVar(0.0, 1.0)
                at = (l * E + e) * S + s
                model.changeColCost(at, load[l][e] * cost[l][s] / scale * 1e4)
                model.changeColIntegrality(at, highspy.HighsVarType.kInteger)
    ones = lambda k: numpy.ones(k)
    for l in range(L):
        for e in range(E):
            model.addRow(1.0, 1.0, S, numpy.array([(l * E + e) * S + s for s in range(S)], dtype=numpy.int32), ones(S))
        for s in range(S):
            model.addRow(0.0, float(c_layer[s]), E,
                         numpy.array([(l * E + e) * S + s for e in range(E)], dtype=numpy.int32), ones(E))
    for s in range(S):
        at = numpy.array([(l * E + e) * S + s for l in range(L) for e in range(E)], dtype=numpy.int32)
        model.addRow(0.0, float(c_exp[s]), len(at), at, ones(len(at)))
    model.run()
    if model.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return None
    y = model.getSolution().col_value
    return math.fsum(load[l][e] * cost[l][s] for l in range(L) for e in range(E) for s in range(S)
                     if y[(l * E + e) * S + s] > 0.5)


solved = refused = 0
with tempfile.TemporaryDirectory() as folder:
    for i in range(count):
        L, E, S = rnd.randint(1, 5), rnd.randint(1, 8), rnd.randint(1, 8)
        kinds = rnd.randrange(4), rnd.randrange(4)
        load = [[draw(kinds[0]) for _ in range(E)] for _ in range(L)]
        for row in load:
            row[rnd.randrange(E)] += 1  # no layer without load: those take no capacity
        cost = [[draw(kinds[1]) for _ in range(S)] for _ in range(L)]
        for s in range(1, S):
            if rnd.random() < 0.4:
                for row in cost:
                    row[s] = row[s - 1]
        if rnd.random() < 0.7:  # near the least that suffices
            c_layer, c_exp = [-(-E // S) + rnd.randrange(3)] * S, [-(-L * E // S) + rnd.randrange(3)] * S
        else:
            c_layer, c_exp = [rnd.randint(0, E) for _ in range(S)], [rnd.randint(0, L * E) for _ in range(S)]
        with open(f"{folder}/load.csv", "w") as f:
            f.write("layer,expert,tokens\n" + "".join(
                f"{l},{e},{load[l][e]!r}\n" for l in range(L) for e in range(E)))
        for name, value in (("cost", cost), ("layer", [c_layer]), ("exp", [c_exp])):
            json.dump(value, open(f"{folder}/{name}.json", "w"))
        done = subprocess.run([program, "place", "--load", f"{folder}/load.csv", "--cost", f"{folder}/cost.json",
                               "--c-layer", f"{folder}/layer.json", "--c-exp", f"{folder}/exp.json", "--json", "--method",
                               "ilpload"], capture_output=True, text=True, timeout=60)
        best = highs(load, cost, c_layer, c_exp)
        if done.returncode:
            assert best is None, f"instance {i}: refused ({done.stderr.strip()}), HiGHS finds {best}"
            refused += 1
            continue
        ours = json.loads(done.stdout)
        assert best is not None, f"instance {i}: HiGHS finds it infeasible"
        assert ours["gap"] == 0, f"instance {i}: gap {ours['gap']}"
        assert abs(ours["objective"] - best) <= 1e-9 * max(1, abs(best)), f"instance {i}: {ours['objective']} and {best}"
        solved += 1
print(f"{solved} instances equal to HiGHS with gap 0, {refused} infeasible for both")
assert solved >= count // 2
