#!/usr/bin/env python3
"""tools/check_sass on code with planted faults, and on the listings of tools/compile_cuda; tools/compile_cuda with a toolkit that is none."""
import glob
import json
import os
import re
import shutil
import subprocess
import tempfile
import unittest

ROOT = os.environ["COT_SOURCE"]
CHECK, COMPILE = ROOT + "/tools/check_sass", ROOT + "/tools/compile_cuda"
ARCHITECTURES = ("80", "90a", "100", "120")


def listing(lines, kernel="cot_cuda_fused_bf16", arch="90"):
    """As nvdisasm -c -hex prints it: of each line a label, or (stall, text); and what ends it."""
    out, at = [f"\t.target\tsm_{arch}", "", f".text.{kernel}:"], 0
    for line in [*lines, (9, "EXIT")]:
        if isinstance(line, str):  # a label has a point, whatever stands before it
            out.append(line + ":" * (line.strip()[0] in ".$" and " " not in line.strip()))
            continue
        stall, text = line
        out.append(f"        /*{at:04x}*/                   {text} ;      /* 0x00000000001e7805 */")
        out.append(f"{'':50}/* 0x{0x000fc00000000000 & ~(15 << 41) | stall << 41:016x} */")
        at += 16
    return "\n".join(out) + "\n"


ZERO = (2, "CS2R R30, SRZ")
REFUSED = {
    "the test of a null that a device found untrue": [(2, "@!P1 CS2R R30, SRZ"), (3, "IADD3 R4, R5, R6, RZ"),
                                                      (4, "ISETP.NE.U32.AND P0, PT, R30, RZ, PT")],
    "the upper half": [(5, "CS2R R30, SRZ"), (4, "ISETP.NE.AND.EX P0, PT, R31, RZ, PT, P0")],
    "one register": [(5, "CS2R.32 R30, SRZ"), (4, "IADD3 R4, R30, R6, RZ")],
    "a sum of HMMA": [ZERO, (4, "HMMA.16816.F32.BF16 R4, R8, R12, R28")],
    "a sum's last registers": [ZERO, (4, "HMMA.16816.F32.BF16 R4, R8, R12, R27")],
    "rows of HMMA": [ZERO, (4, "HMMA.16816.F32.BF16 R4, R28, R12, R16")],
    "columns of HMMA": [ZERO, (4, "HMMA.16816.F32.BF16 R4, R8, R29, R16")],
    "what is compared by an atomic": [(5, "CS2R R8, SRZ"), (2, "ATOM.E.CAS.64.STRONG.GPU P0, RZ, [R24], R8, R10")],
    "what an atomic adds": [ZERO, (2, "ATOMG.E.ADD.64.STRONG.GPU PT, R4, desc[UR4][R2.64], R30")],
    "its upper half": [(2, "CS2R.32 R31, SRZ"), (2, "ATOMG.E.ADD.64.STRONG.GPU PT, R4, desc[UR4][R2.64], R30")],
    "what is stored": [ZERO, (2, "STG.E.64 desc[UR4][R2.64], R30")],
    "a pair's second": [(2, "CS2R.32 R31, SRZ"), (2, "STS.64 [R2], R30")],
    "four": [ZERO, (2, "ST.E.128 desc[UR4][R2.64], R28")],
    "where": [ZERO, (2, "LDG.E R4, desc[UR4][R30.64+0x10]")],
    "where, its upper half": [(2, "CS2R.32 R31, SRZ"), (2, "LDG.E R4, desc[UR4][R30.64]")],
    "where, of any kind, its upper half": [(2, "CS2R.32 R31, SRZ"), (2, "LD.E.64 R22, [R30]")],
    "where to, of any kind, its upper half": [(2, "CS2R.32 R31, SRZ"), (2, "ST.E.64 [R30], R20")],
    "what kind of place that is": [(2, "CS2R.32 R31, SRZ"), (2, "QSPC.E.S P0, RZ, [R30]")],
    "beside the upper half of a product": [ZERO, (2, "IMAD.HI.U32 R30, P0, R2, R3, R4"), (2, "IADD3 R4, R31, R6, RZ")],
    "where to": [ZERO, (2, "LDGSTS.E.BYPASS.128 [R30+0x4000], desc[UR8][R2.64], P0")],
    "a wide product's sum": [ZERO, (2, "IMAD.WIDE.U32 R4, R2, R3, R29")],
    "a number of 64 bits": [ZERO, (2, "IADD.64 R4, R29, R6")],
    "by a branch": [ZERO, (2, "@P0 BRA `(.L_x_1)"), (9, "EXIT"), ".L_x_1", (2, "IADD3 R4, R30, R6, RZ")],
    "behind a branch not taken": [ZERO, (2, "@P0 BRA `(.L_x_1)"), (2, "IADD3 R4, R30, R6, RZ"), ".L_x_1", (9, "EXIT")],
    "around a loop": [".L_x_1", (2, "IADD3 R4, R30, R6, RZ"), (2, "CS2R R30, SRZ"), (3, "@P0 BRA `(.L_x_1)"), (9, "EXIT")],
    "where lanes meet again": [(2, "BSSY B0, `(.L_x_1)"), ZERO, (2, "BSYNC B0"), (9, "EXIT"), ".L_x_1", (2, "IADD3 R4, R30, R6, RZ")],
    "set anew on a condition": [ZERO, (2, "@P0 IMAD.MOV.U32 R30, RZ, RZ, R6"), (2, "IADD3 R4, R30, R6, RZ")],
    "half of it set anew": [ZERO, (2, "IMAD.MOV.U32 R30, RZ, RZ, R6"), (2, "IADD3 R4, R31, R6, RZ")],
    "the other word of a shift": [ZERO, (2, "SHF.L.U64.HI R30, R2, R3, R4"), (2, "IADD3 R4, R31, R6, RZ")],
    "what is made of 64 bits": [ZERO, (2, "I2F.U64.RP R30, R2"), (2, "IADD3 R4, R31, R6, RZ")],
    "behind the end of some": [ZERO, (2, "EXIT P0"), (2, "IADD3 R4, R30, R6, RZ")],
    "behind a branch of some": [ZERO, (2, "BRA P1, `(.L_x_1)"), (2, "IADD3 R4, R30, R6, RZ"), ".L_x_1", (9, "EXIT")],
    "behind a branch of a warp that is apart": [ZERO, (2, "BRA.DIV UR4, `(.L_x_1)"), (2, "IADD3 R4, R30, R6, RZ"), ".L_x_1", (9, "EXIT")],
    "behind one that may always be": [ZERO, (2, "BRA.DIV ~URZ, `(.L_x_1)"), (2, "IADD3 R4, R30, R6, RZ"), ".L_x_1", (9, "EXIT")],
    "behind one to where warps meet": [ZERO, (2, "BRA.CONV ~URZ, `(.L_x_1)"), (2, "IADD3 R4, R30, R6, RZ"), ".L_x_1", (9, "EXIT")],
    "two halves compared": [(5, "CS2R R30, SRZ"), (4, "HSETP2.NE.AND P0, P1, R30, R4, PT")],
    "where to return": [(2, "CALL.REL.NOINC `($f$1)"), (9, "EXIT"), "$f$1", ZERO, (2, "RET.REL.NODEC R30 `(cot_cuda_fused_bf16)")],
    "behind a label that is set in": [ZERO, (2, "@P0 BRA `(.L_x_1)"), (9, "EXIT"), "    .L_x_1", (2, "IADD3 R4, R30, R6, RZ")],
    "in a function": [ZERO, (2, "CALL.REL.NOINC `($f$1)"), (9, "EXIT"), "$f$1", (2, "IADD3 R4, R30, R6, RZ")],
    "behind a call": [(2, "CALL.REL.NOINC `($f$1)"), (2, "IADD3 R4, R30, R6, RZ"), (9, "EXIT"), "$f$1", ZERO, (2, "RET.REL.NODEC R2 `(k)")],
    "behind a call from another section": [(2, "CALL.ABS.NOINC `(f)"), (2, "IADD3 R4, R30, R6, RZ"), (9, "EXIT"), "f:", ".text.f", ZERO,
                                           (2, "RET.ABS.NODEC R2 `(f)")],
    "one of the places of a table": [ZERO, (2, 'BRX R2 -0x30 (*"BRANCH_TARGETS .L_x_1,.L_x_2"*)'), ".L_x_1", (9, "EXIT"), ".L_x_2",
                                     (2, "IADD3 R4, R30, R6, RZ")],
    "where a table's number is": [ZERO, (2, 'BRX R30 -0x30 (*"BRANCH_TARGETS .L_x_1"*)'), ".L_x_1", (9, "EXIT")],
    "where a warp goes together": [ZERO, (2, "WARPSYNC.COLLECTIVE R2, `(.L_x_1)"), (9, "EXIT"), ".L_x_1", (2, "IADD3 R4, R30, R6, RZ")],
    "four that a warp stores": [ZERO, (2, "STSM.16.M88.4 [R8], R28")],
    "eight": [ZERO, (2, "STG.E.ENL2.256 desc[UR4][R2.64], R8, R24")],
    "the larger of two of 64 bits": [(2, "CS2R.32 R31, SRZ"), (2, "DMNMX R4, R30, R6, PT")],
    "a uniform register": [(2, "CS2UR UR4, SR_GLOBALTIMERLO"), (2, "UIADD3 UR6, UPT, UPT, UR5, 0x1, URZ")],
    "a uniform register beside another": [(2, "CS2UR UR4, SRZ"), (2, "IADD3 R4, R5, UR4, RZ")],
    "where, uniform": [(2, "CS2UR UR4, SRZ"), (2, "LDG.E R4, desc[UR4][R2.64]")],
    "a wgmma's sums": [ZERO, (2, "HGMMA.64x256x16.F32.BF16 R24, gdesc[UR8], R24, gsb0")],
    "a wgmma's second matrix": [(2, "CS2UR UR10, SRZ"), (2, "HGMMA.64x128x16.F32.BF16 R24, gdesc[UR8], R24, gsb0")],
    "bytes that a word expects": [ZERO, (2, "SYNCS.ARRIVE.TRANS64 RZ, [UR7+0x34000], R30")],
    "a word": [ZERO, (2, "SYNCS.ARRIVE.TRANS64.A1T0 RZ, [R30+URZ+0x34000], RZ")],
    "a tile's place": [(2, "CS2UR UR12, SRZ"), (2, "UTMALDG.3D [UR8], [UR16]")],
    "a map that is acquired": [(2, "CS2UR UR4, SRZ"), (2, "UTMACCTL.IV [UR4]")],
    "a tile's map": [(2, "CS2UR UR16, SRZ"), (2, "UTMALDG.3D [UR8], [UR16]")],
    "a time": [(2, "CS2R R26, SR_GLOBALTIMERLO"), (2, "IADD3 R4, R26, R6, RZ")],
}
SET_AGAIN = {
    "by what is done before": [(1, "CS2R R30, SRZ"), (9, "MOV R30, R5"), (2, "IADD3 R4, R30, R6, RZ")],
    "in the same cycle": [(0, "CS2R R30, SRZ"), (9, "MOV R31, R5")],
    "on a condition": [(1, "CS2R R30, SRZ"), (9, "@P0 IMAD.U32 R31, R5, 0x10000, RZ")],
    "by the upper half of a product": [(1, "CS2R R30, SRZ"), (9, "IMAD.WIDE R29, R2, R3, R4")],
    "a uniform register": [(1, "CS2UR UR4, SRZ"), (9, "UMOV UR5, 0x1")],
    "behind a branch": [(1, "CS2R R30, SRZ"), (0, "@P0 BRA `(.L_x_1)"), (9, "EXIT"), ".L_x_1", (9, "MOV R30, R5")],
}
LET_BY = {
    "set again when it is done": [ZERO, (9, "MOV R30, R5")],
    "loaded over at once": [(1, "CS2R R30, SRZ"), (9, "@P0 LDG.E R30, desc[UR4][R2.64]")],
    "set to zero again": [(1, "CS2R R30, SRZ"), (9, "@P0 CS2R R30, SRZ")],
    "six cycles later": [(6, "CS2R R30, SRZ"), (4, "ISETP.NE.U32.AND P0, PT, R30, RZ, PT")],
    "six in all": [ZERO, (2, "NOP"), (2, "NOP"), (4, "IADD3 R4, R30, R6, RZ")],
    "other registers": [ZERO, (2, "IADD3 R4, R3, R32, RZ"), (2, "HMMA.16816.F32.BF16 R4, R8, R12, R32")],
    "a wgmma's sums that end before": [ZERO, (2, "HGMMA.64x8x16.F32.BF16 R24, gdesc[UR8], R24, gsb0")],
    "a sum that ends before": [ZERO, (4, "HMMA.16816.F32.BF16 R4, R8, R12, R26")],
    "set anew": [ZERO, (2, "IMAD.WIDE R30, R2, R3, R4"), (2, "IADD3 R4, R30, R31, RZ")],
    "a sum in its place": [ZERO, (2, "HMMA.16816.F32.BF16 R28, R8, R12, RZ"), (2, "IADD3 R4, R30, R31, RZ")],
    "loaded over": [ZERO, (2, "LDG.E.64 R30, desc[UR4][R2.64]"), (2, "IADD3 R4, R30, R31, RZ")],
    "not on the way": [ZERO, (2, "BRA `(.L_x_1)"), (2, "IADD3 R4, R30, R6, RZ"), ".L_x_1", (9, "EXIT")],
    "behind the end": [ZERO, (2, "EXIT"), (2, "IADD3 R4, R30, R6, RZ")],
    "a uniform register": [ZERO, (2, "IADD3 R4, R5, UR30, RZ")],
    "how many registers": [ZERO, (2, "USETMAXREG.TRY_ALLOC.CTAPOOL UP0, 0xd8")],
}
NOT_KNOWN = {  # each by its name
    "BRA 0x30": [(2, "BRA 0x30")],
    "BRA `(.L_x_9)": [(2, "BRA `(.L_x_9)")],
    "@P0 BRA 0x30": [(2, "@P0 BRA 0x30")],
    "BRX R4 -0x30": [(2, "BRX R4 -0x30")],
    "BSYNC B0": [(2, "BSYNC B0")],
    "JMX R4 -0x30": [(2, "JMX R4 -0x30")],
    "RET.REL.NODEC R4 `(k)": [(2, "CALL.REL.NOINC `($f$1)"), (9, "EXIT"), "$f$1", (9, "EXIT"), ".text.g", (2, "RET.REL.NODEC R4 `(k)")],
    "WARPSYNC.COLLECTIVE R5": [(2, "WARPSYNC.COLLECTIVE R5")],
    "HMMA.1684.F32.TF32 R4, R8, R12, R4": [(2, "HMMA.1684.F32.TF32 R4, R8, R12, R4")],
    "HMMA.SP.16832.F32.BF16 R4, R8, R12, R4, R20, 0x0": [(2, "HMMA.SP.16832.F32.BF16 R4, R8, R12, R4, R20, 0x0")],
    "HMMA.16816.F16 R4, R8, R12, R4": [(2, "HMMA.16816.F16 R4, R8, R12, R4")],
    "IMMA.16832.S8.S8 R4, R8, R12, R16": [(2, "IMMA.16832.S8.S8 R4, R8, R12, R16")],
    "STSM.8.M168.4 [R8], R28": [(2, "STSM.8.M168.4 [R8], R28")],
    "LDG.E.ENL2.256 R4, R8, desc[UR4][R2.64]": [(2, "LDG.E.ENL2.256 R4, R8, desc[UR4][R2.64]")],
    "REDG.E.ADD.F32x4.RN [R2.64], R4": [(2, "REDG.E.ADD.F32x4.RN [R2.64], R4")],
    "HGMMA.64x256x16.F16 R4, gdesc[UR8], R4": [(2, "HGMMA.64x256x16.F16 R4, gdesc[UR8], R4")],
    "HGMMA.SP.64x256x32.F32.BF16 R4, gdesc[UR8], R4": [(2, "HGMMA.SP.64x256x32.F32.BF16 R4, gdesc[UR8], R4")],
    "FROBNICATE R4, R5": [(2, "FROBNICATE R4, R5")],
    "HMMA.16816.F32.BF16 R4, R8, R12, R4, R2": [(2, "HMMA.16816.F32.BF16 R4, R8, R12, R4, R2")],
    "HMMA.16816.F32.BF16 R4": [(2, "HMMA.16816.F32.BF16 R4")],
    "HMMA.16816.F32.BF16 R4, R8, , R4": [(2, "HMMA.16816.F32.BF16 R4, R8, , R4")],
    "IADD3": [(2, "IADD3")],
    "IADD3 R4, R5, R6": [(2, "IADD3 R4, R5, R6")],
    "@P0 CS2R": [(2, "@P0 CS2R")],
    "CS2R R30": [(2, "CS2R R30")],
    "STG.E desc[UR4][R2.64]": [(2, "STG.E desc[UR4][R2.64]")],
    "what is this": ["what is this"],
    ".inst 0x00001e7805, 0x000fc0": ["\t.inst 0x00001e7805, 0x000fc0"],
    ".byte 0x12": ["\t.byte 0x12"],
}

NVCC = """#!/bin/sh
case "$*" in
*--version*) echo 'Cuda compilation tools, release %(release)s, V%(release)s.88'; exit ;;
esac
while [ $# -gt 1 ]; do
    if [ "$1" = -o ]; then : >"$2"; echo "$2" >>"%(at)s/made"; fi
    shift
done
echo "ptxas info    : Compiling entry function '%(kernel)s' for 'sm_90a'"
echo "    0 bytes stack frame, %(spilt)s bytes spill stores, 0 bytes spill loads"
echo 'ptxas info    : Used 100 registers, used 2 barriers'
"""
FATBINARY = """#!/bin/sh
for word; do case "$word" in --create=*) : >"${word#--create=}" ;; esac; done
"""
NVDISASM = """#!/bin/sh
[ "$1 $2" = "-c -hex" ] && cat '%s/code'
"""


def loop(number, hmma, ldgsts, stages=1, more=0):
    """A main loop with so many of them a stage."""
    of_stage = [(2, "HMMA.16816.F32.BF16 R4, R8, R12, R28")] * hmma + [(2, "LDGSTS.E.128 [R4], desc[UR8][R2.64]")] * ldgsts + \
        [(2, "LDSM.16.M88.4 R4, [R8]"), (2, "LDGDEPBAR")]
    return [f".L_x_{number}", *(of_stage * stages), *[(2, "IADD3 R2, R2, R3, RZ")] * more, (2, f"@P0 BRA `(.L_x_{number})")]


def loops(*those):
    return [line for number, one in enumerate(those) for line in loop(100 + number, *one)] + [(9, "EXIT")]


SOUND = loops((16, 9), (32, 10, 3), (32, 8))


class Sass(unittest.TestCase):
    def check(self, text):
        with tempfile.NamedTemporaryFile("w", suffix=".sass") as file:
            file.write(text)
            file.flush()
            return subprocess.run([CHECK, file.name], capture_output=True, text=True)

    def test_refused(self):
        for name, lines in REFUSED.items():
            done = self.check(listing(lines))
            self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (1, "", 1), name + done.stderr)
            self.assertRegex(done.stderr, "^check_sass: (cot_cuda_fused_bf16|f): '.*CS2U?R.*' at [0-9a-f]+ is read [0-5] cycles later, which is "
                                          "sooner than 6: '.*' at [0-9a-f]+\n$", name)

    def test_set_again(self):
        for name, lines in SET_AGAIN.items():
            done = self.check(listing(lines))
            self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (1, "", 1), name + done.stderr)
            self.assertRegex(done.stderr, "^check_sass: cot_cuda_fused_bf16: '.*CS2U?R.*' at [0-9a-f]+ is set again [01] cycles later, which is "
                                          "sooner than 2: '.*' at [0-9a-f]+\n$", name)

    def test_let_by(self):
        for name, lines in LET_BY.items():
            done = self.check(listing(lines))
            self.assertEqual((done.returncode, done.stdout + done.stderr), (0, ""), name)

    def test_loops(self):
        """Held to a table: each that it has is there, no other is, and none takes more instructions a stage."""
        with tempfile.NamedTemporaryFile("w") as table:
            table.write("# of each\nkernel HMMA LDGSTS sm_80 sm_90\nk 16 9 29 30\nk 32 8 50 50\n")
            table.flush()
            for code, arch, said in ((((16, 9), (32, 8)), "90", ""), (((16, 9, 4, 3), (32, 8)), "90", ""),
                                     (((16, 9, 4, 12), (32, 8)), "90", "the loop at 0000 with 16 HMMA and 9 LDGSTS a stage takes 30.25 "
                                                                       "instructions a stage, at most 30"),
                                     (((16, 9, 4, 8), (32, 8)), "80", "at most 29"),
                                     (((16, 9),), "90", "there is no loop with 32 HMMA and 8 LDGSTS a stage"),
                                     (((16, 9), (32, 8), (32, 10)), "90", "with 32 HMMA and 10 LDGSTS a stage is not in the table of loops"),
                                     (((16, 9), (32, 8)), "100", "the table of loops has none for sm_100")):
                # all of them in a loop of tasks, and what has no HMMA within one of them
                lines = [".L_x_1", (2, "NOP"), *loops(*code)[:-1], (2, "@P1 BRA `(.L_x_1)"), (9, "EXIT")]
                with tempfile.NamedTemporaryFile("w", suffix=".sass") as file:
                    file.write(listing(lines, "k", arch))
                    file.flush()
                    done = subprocess.run([CHECK, "--loops", table.name, file.name], capture_output=True, text=True)
                self.assertEqual(done.returncode, 1 if said else 0, done.stderr)
                self.assertIn(said.replace("at 0000", "at 0010"), done.stderr)

    def test_tables(self):
        """A table that has no row, or a row that is none, holds nothing to anything: it is refused."""
        heading = "kernel HMMA LDGSTS sm_80 sm_90\n"
        with tempfile.TemporaryDirectory() as at:
            with open(f"{at}/code", "w") as file:
                file.write(listing(loops((16, 9)), "k"))
            for text, said in ((heading, "the table of loops has none for sm_90"), ("kernel HMMA LDGSTS\nk 16 9\n", "has none for sm_90"),
                               ("", "table: no heading"), ("# of each\n", "table: no heading"), ("k 16 9 29 30\n", "table: no heading"),
                               ("# of each\n" + heading + "k 16 9 29\n", "table: line 3 has 4 columns, its heading 5"),
                               (heading + "k 16 9 29 30 31\n", "table: line 2 has 6 columns"), (heading + "k 16 9 29 y\n", "'y' in line 2 is not"),
                               (heading + "k 16 9 29 30\nk 16 9 29 99\n", "line 3 has a loop that is there already"), (None, "No such file")):
                if text is not None:
                    with open(f"{at}/table", "w") as file:
                        file.write(text)
                done = subprocess.run([CHECK, "--loops", f"{at}/table" if text is not None else f"{at}/none", f"{at}/code"],
                                      capture_output=True, text=True)
                lines = 2 if "has none" in said else 1  # of the table, and of the loop that it has not
                self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (1, "", lines), done.stderr)
                self.assertIn(said, done.stderr)
                self.assertTrue(done.stderr.startswith("check_sass: "), done.stderr)

    def test_not_known(self):
        """What might read or go anywhere is refused, wherever it stands."""
        for name, lines in NOT_KNOWN.items():
            done = self.check(listing([(9, "NOP"), *lines, (9, "EXIT")]))
            self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (1, "", 1), name + done.stderr)
            self.assertRegex(done.stderr, f"^check_sass: .* is not known to tools/check_sass: '{re.escape(name)}'")

    def test_not_code(self):
        for text, said in (("", "there is no code"), (listing([ZERO]).rsplit("\n", 2)[0], "no second word"),
                           (listing([ZERO]).rsplit("\n", 3)[0], "what follows is not known"),
                           (listing([".L_x_1", ZERO, ".L_x_1"]), "line 7 has the label '.L_x_1' again")):
            done = self.check(text)
            self.assertEqual(done.returncode, 1)
            self.assertIn(said, done.stderr)
        self.assertEqual(subprocess.run([CHECK], capture_output=True).returncode, 2)

    def test_not_read(self):
        """What cannot be read, code or table, is told in a line with its name."""
        with tempfile.NamedTemporaryFile("wb") as file:
            file.write(b"\t.target\tsm_90\n\xff\n")
            file.flush()
            for name, said in ((file.name, "is not text in UTF-8"), ("/nowhere", "No such file or directory"), ("/", "Is a directory")):
                for words in ((name,), ("--loops", name, "/nowhere")):
                    done = subprocess.run([CHECK, *words], capture_output=True, text=True)
                    self.assertEqual((done.returncode, done.stdout, done.stderr), (1, "", f"check_sass: {name}: {said}\n"))

    def test_what_is_compiled(self):
        """Of every architecture: nothing is refused, and much would be if each instruction were followed by the next at once."""
        cubins = os.environ.get("COT_CUBINS", "")
        if not glob.glob(f"{cubins}/*.sass"):
            self.skipTest("nothing is compiled (make cuda)")
        for arch in ARCHITECTURES:
            with open(f"{cubins}/bulk.sm_{arch}.sass", encoding="utf-8") as file:
                text = file.read()
            self.assertEqual(self.check(text).stderr, "", arch)
            at_once = re.sub(r"^(\s*/\* 0x)([0-9a-f]{16}) \*/$",
                             lambda m: f"{m[1]}{int(m[2], 16) & ~(15 << 41) | 1 << 41:016x} */", text, flags=re.M)
            done = self.check(at_once)
            self.assertEqual(done.returncode, 1)
            self.assertGreater(done.stderr.count("\n"), 2, arch)


class Compile(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.at = self.folder.name
        os.mkdir(f"{self.at}/bin")

    def tool(self, name, text):
        with open(f"{self.at}/bin/{name}", "w") as out:
            out.write(text)
        os.chmod(f"{self.at}/bin/{name}", 0o755)

    def compile(self, code, *words, spilt=0, program=COMPILE, disassembler=True, release="13.0", arch="90a", kernel="cot_cuda_fused_bf16"):
        """With a toolkit whose compiler and disassembler say this."""
        with open(f"{self.at}/code", "w") as out:
            out.write(listing(code, kernel, arch))
        self.tool("nvcc", NVCC % {"spilt": spilt, "at": self.at, "release": release, "kernel": kernel})
        self.tool("fatbinary", FATBINARY)
        if disassembler:
            self.tool("nvdisasm", NVDISASM % self.at)
        path = ":".join(p for p in os.environ["PATH"].split(":") if not os.path.exists(f"{p}/nvdisasm"))
        return subprocess.run([program, *words], capture_output=True, text=True,
                              env={**os.environ, "PATH": f"{self.at}/bin:{path}", "PIP_NO_INDEX": "1"})

    def test_every_architecture(self):
        for arch in ARCHITECTURES:
            done = self.compile(SOUND, "--one", "fused", arch, self.at, arch=arch)
            self.assertEqual((done.returncode, done.stderr), (0, ""), arch)
            os.remove(f"{self.at}/fused.sm_{arch}.told")
            done = self.compile(SOUND[1:], "--one", "fused", arch, self.at, arch=arch)
            self.assertEqual(done.returncode, 1, arch)
            self.assertIn("check_sass: ", done.stderr)
            done = self.compile(SOUND + REFUSED["a sum of HMMA"], "--one", "fused", arch, self.at, arch=arch)
            self.assertEqual(done.returncode, 1, arch)
            self.assertIn("is read 2 cycles later", done.stderr)
            self.assertFalse(os.path.exists(f"{self.at}/fused.sm_{arch}.told"))

    def test_many(self):
        """Kernels of many rows have wgmma of their columns, copies of tiles and words."""
        right = [(2, "HGMMA.64x256x16.F32.BF16 R24, gdesc[UR8], R24, gsb0"), (2, "UTMALDG.3D [UR8], [UR16]"),
                 (2, "SYNCS.ARRIVE.TRANS64.A1T0 RZ, [R30+URZ+0x34000], RZ"), (2, "LDGSTS.E.128 [R4], desc[UR8][R2.64]"),
                 (2, "UTMACCTL.IV [UR4]"), (2, "USETMAXREG.DEALLOC.CTAPOOL 0x48")]
        wrong = {name: right[:i] + right[i + 1:]
                 for i, name in enumerate(("HGMMA.64x256x16", "UTMALDG", "SYNCS", "LDGSTS", "UTMACCTL", "USETMAXREG"))}
        for lacks, code in {"": right, **wrong}.items():
            done = self.compile(code, "--one", "many", "90a", self.at, arch="90a", kernel="cot_cuda_many_256_kernel")
            self.assertEqual((done.returncode, done.stderr),
                             (1, f"compile_cuda: sm_90a: cot_cuda_many_256_kernel has no {lacks}\n") if lacks else (0, ""))
            if not lacks:
                os.remove(f"{self.at}/many.sm_90a.told")

    def test_usage(self):
        done = subprocess.run([COMPILE, "--help"], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        for said in ("Compiles every kernel", "tools/compile_cuda FOLDER", "tools/compile_cuda --here IMAGES MAJOR"):
            self.assertIn(said, done.stdout)
        self.assertNotIn("set -eu", done.stdout)
        name = "a folder's name must not"
        major = "MAJOR is the first number of a compute capability that there are kernels for (8, 9, 10, 12), not "
        for words, said in (([], "FOLDER is missing"), (["--here", self.at], "'--here' takes IMAGES and MAJOR"),
                            (["--image", self.at], "'--image' takes IMAGES and FOLDER"), (["--nothing"], "'--nothing' is not known"),
                            (["--help", "all"], "'--help' takes nothing"), ([self.at, "another"], "'another' stands behind FOLDER"),
                            *((["--here", f"{self.at}/images", word], f"{major}'{word}'") for word in ("7", "-1", "", "x", "11", "08", "9.0", "80 9")),
                            *((["--here", word, "9"], name) for word in ("", "-p", f'{self.at}/a"b', f"{self.at}/a\\b", f"{self.at}/a\nb")),
                            (["--image", f'{self.at}/a"b', self.at], name), (["--image", self.at, ""], name), ([""], name)):
            done = self.compile(SOUND, *words)
            self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (2, "", 1), f"{words}: {done.stderr}")
            self.assertTrue(done.stderr.startswith("compile_cuda: " + said), f"{words}: {done.stderr}")
        self.assertEqual({name for name in os.listdir(self.at)}, {"bin", "code"})  # nothing is made

    def test_places_with_spaces(self):
        """The repository, the toolkit and what is made may lie in such."""
        self.at, tree = f"{self.at}/a toolkit", f"{self.at}/a tree"
        os.makedirs(f"{self.at}/bin")
        for folder in ("cuda", "tools", "src/moe/fused"):
            shutil.copytree(f"{ROOT}/{folder}", f"{tree}/{folder}")
        program, images, cubins = f"{tree}/tools/compile_cuda", f"{self.at}/some images", f"{self.at}/some cubins"
        done = self.compile(SOUND, "--here", images, "9", program=program)
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(f"{images}/made.json") as file:
            self.assertTrue(json.load(file)["looked_through"])
        os.makedirs(cubins)
        done = self.compile(SOUND, "--one", "fused", "90a", cubins, program=program)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        done = self.compile(SOUND + REFUSED["a sum of HMMA"], "--image", images, cubins, program=program)  # those that are not made yet
        self.assertIn("cot_cuda_fused_bf16: 'CS2R R30, SRZ'", done.stderr)
        self.assertEqual([name for name in os.listdir(cubins) if " " in name or not name.startswith(("fused.", "bulk.", "disassembler"))], [])

    def test_here(self):
        images = f"{self.at}/images"

        def made():
            with open(f"{images}/made.json") as file:
                return json.load(file)

        done = self.compile(REFUSED["a sum of HMMA"], "--here", images, "9")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("is read 2 cycles later", done.stderr)
        self.assertFalse(os.path.exists(f"{images}/image.h"))
        self.assertFalse(os.path.exists(f"{images}/made.json"))  # who looks without a disassembler would take them
        os.remove(f"{self.at}/made")
        self.assertEqual(self.compile(SOUND, "--here", images, "9").returncode, 0)
        done = self.compile(SOUND, "--here", images, "9", spilt=12)
        self.assertEqual(done.returncode, 0, done.stderr)  # they are there already, and have been held to it
        self.assertEqual((made()["compiler"], made()["looked_through"]), ("nvcc 13.0.88", True))
        with open(f"{self.at}/made") as file:
            self.assertEqual(sorted(os.path.basename(line.strip()) for line in file), ["bulk.cubin", "fused.cubin", "timeline.cubin"])
        self.assertEqual({name for name in os.listdir(images) if name.endswith((".fatbin", ".h", ".sass"))},
                         {"fused.fatbin", "bulk.fatbin", "timeline.fatbin", "image.h"})
        os.remove(f"{images}/made.json")
        done = self.compile(SOUND, "--here", images, "9", spilt=12)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("spills registers of cuda/fused.cu for sm_90a", done.stderr)
        self.assertFalse(os.path.exists(f"{images}/made.json"))

    def test_without_a_disassembler(self):
        """Images are made and said not to be looked through; once there is one they are, and refused."""
        tree, images = f"{self.at}/tree", f"{self.at}/images"
        for folder in ("cuda", "tools", "src/moe/fused"):  # where no wheel has been fetched
            shutil.copytree(f"{ROOT}/{folder}", f"{tree}/{folder}")
        program = f"{tree}/tools/compile_cuda"
        done = self.compile(REFUSED["a sum of HMMA"], "--here", images, "9", program=program, disassembler=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(f"{images}/made.json") as file:
            self.assertFalse(json.load(file)["looked_through"])
        done = self.compile(REFUSED["a sum of HMMA"], "--here", images, "9", program=program)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("is read 2 cycles later", done.stderr)

    def test_made_elsewhere(self):
        """Images of the same sources stay, and are found where they are now; of others they are made anew."""
        images, moved = f"{self.at}/images", f"{self.at}/moved"
        self.assertEqual(self.compile(SOUND, "--here", images, "9", release="12.8").returncode, 0)
        os.rename(images, moved)
        self.assertEqual(self.compile(REFUSED["a sum of HMMA"], "--here", moved, "9").returncode, 0)
        with open(f"{moved}/image.h") as file:
            told = file.read()
        self.assertIn(f'"{moved}/fused.fatbin"', told)
        self.assertIn("#define COT_CUDA_VERSION 12080\n", told)  # the driver that they need is that of the compiler that made them
        self.assertNotEqual(self.compile(REFUSED["a sum of HMMA"], "--here", moved, "10").returncode, 0)

    def test_looked_through_elsewhere(self):
        """Images that a machine without a disassembler made and another one looks through stay the first one's; what is cut short counts for
        nothing."""
        tree, images = f"{self.at}/tree", f"{self.at}/images"
        for folder in ("cuda", "tools", "src/moe/fused"):
            shutil.copytree(f"{ROOT}/{folder}", f"{tree}/{folder}")
        program = f"{tree}/tools/compile_cuda"
        self.compile(SOUND, "--here", images, "9", program=program, disassembler=False, release="12.8")
        with open(f"{images}/made.json") as file:
            text = json.dumps({**json.load(file), "boot": "elsewhere"}) + "\n"
        with open(f"{images}/made.json", "w") as file:
            file.write(text)
        self.assertEqual(self.compile(SOUND, "--here", images, "9", program=program).returncode, 0)
        with open(f"{images}/made.json") as file:
            made = json.load(file)
        self.assertEqual((made["compiler"], made["looked_through"], made["boot"]), ("nvcc 12.8.88", True, "elsewhere"))
        with open(f"{images}/made.json") as file:
            text = file.read()

        def write(name, text):
            with open(f"{images}/{name}", "w") as file:
                file.write(text)

        for what, spoil in {"cut short": lambda: write("made.json", text[:100]), "gone": lambda: os.remove(f"{images}/fused.fatbin"),
                            "another": lambda: write("bulk.fatbin", "x"), "nothing to look through": lambda: os.remove(f"{images}/bulk.cubin")}.items():
            with self.subTest(what):
                spoil()
                self.assertEqual(self.compile(SOUND, "--here", images, "9", program=program).returncode, 0)
                with open(f"{images}/made.json") as file:
                    self.assertEqual(json.load(file)["compiler"], "nvcc 13.0.88")
                self.assertEqual([name for name in os.listdir(images) if "*" in name], [])
                write("made.json", text)  # as it was


unittest.main()
