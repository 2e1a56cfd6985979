/* `oshrun -np P coterie ...`: what comes out is what threads give, and what goes wrong is one line. */
#include "harness/cli/broken.h"
#include "harness/cli/capture.h"
#include "harness/cmocka.h"
#include "harness/fabric/oshrun.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static capture c, of_threads;

/* Lines of the program itself: oshrun has its own to say of a process that failed. */
static int own_lines(const char *text)
{
    int lines = 0;
    for (const char *at = text; (at = strstr(at, "coterie: ")); at++) lines += at == text || at[-1] == '\n';
    return lines;
}

static void start(const char *ranks, const char *how, const char *line)
{
    char whole[2048];
    snprintf(whole, sizeof whole, "exec </dev/null; m=" TINY "; oshrun -np %s %s \"$coterie\" %s", ranks, how,
             line);
    capture_shell(&c, whole);
}

/* Texts and losses, in fp32 with heads split, and the logits of dp in bf16, bit for bit. */
static void what_threads_print_is_printed(void **state)
{
    (void)state;
    static const char text[] =
        "run $m -p 'Question: A farmer has 12 hens.' -p 'The town' -n 8 --precision fp32";
    char line[512];
    for (int ranks = 1; ranks <= 8; ranks *= 2) {
        if (ranks != 4 && !getenv("COT_LONG")) continue;
        char number[8];
        snprintf(number, sizeof number, "%d", ranks);
        snprintf(line, sizeof line, "m=" TINY "; \"$coterie\" %s --ranks %d", text, ranks);
        capture_shell(&of_threads, line);
        assert_int_equal(of_threads.status, 0);
        start(number, "", text);
        if (c.status) fail_msg("%d ranks: %s", ranks, c.err);
        assert_string_equal(c.out, of_threads.out);
        assert_string_equal(c.err, "");
    }
}

static void logits_are_those_of_threads(void **state)
{
    (void)state;
    capture_shell(&c, "m=" TINY
                      "; d=$(mktemp -d) && cd $d && trap 'rm -r $d' EXIT; echo 'The town was quiet.' >words;"
                      "export TERM=xterm; o=\"--text words --attention dp --stats=s\";"
                      "\"$coterie\" eval $m $o -o threads.safetensors --ranks 4 && mv s t &&"
                      "oshrun -np 4 \"$coterie\" eval $m $o -o shmem.safetensors </dev/null &&"
                      "cmp threads.safetensors shmem.safetensors &&"
                      "for f in s t; do sed -i '/\"prefill_ns\"/,$d' $f; done; cmp s t && wc -l <s");
    if (c.status) fail_msg("%s", c.err);
    const char *second = strstr(c.out + 1, "sequence "); // the table comes twice, as to a file
    assert_non_null(second);
    const size_t bytes = (size_t)(second - c.out);
    assert_memory_equal(c.out, second, bytes);
}

/* UCX warns, as of a variable that it does not know, where it is asked to; else beside the text, not in it. */
static void what_ucx_warns_of_is_no_output(void **state)
{
    (void)state;
    static const char warning[] = "unused env variable: UCX_COT_UNKNOWN";
    static const char *const ways[] = {"oshrun -np 2 \"$coterie\" run $m",
                                       "\"$coterie\" run $m --fabric shmem --ranks 2"};
    capture_shell(&of_threads, "m=" TINY "; \"$coterie\" run $m -p 'The town' -n 8");
    for (int i = 0; i < 2; i++) {
        char line[1024];
        snprintf(line, sizeof line,
                 "m=" TINY "; export UCX_COT_UNKNOWN=1; unset UCX_LOG_FILE; %s -p 'The town' -n 8 </dev/null",
                 ways[i]);
        capture_shell(&c, line);
        assert_int_equal(c.status, 0);
        assert_string_equal(c.out, of_threads.out);
        assert_non_null(strstr(c.err, warning));
    }
    capture_shell(
        &c, "m=" TINY "; d=$(mktemp -d); trap 'rm -r $d' EXIT; export UCX_COT_UNKNOWN=1 "
            "UCX_LOG_FILE=$d/log; oshrun -np 2 \"$coterie\" run $m -p 'The town' -n 8 </dev/null 2>$d/err; "
            "cat $d/log >&2");
    assert_string_equal(c.out, of_threads.out);
    assert_non_null(strstr(c.err, warning));
}

/* One way after the other: each is a group of its own. What they move is what threads move. */
static void ways_of_a_pipeline_are_measured(void **state)
{
    (void)state;
    static const char
        bench[] = "bench pipeline $m --tokens 24,8 --phase prefill,decode --decode-steps 2 --repeat 1 --json",
        sift[] = "python3 -c 'import json,sys\n"
                 "rows=[[r[k] for k in (\"ranks\",\"pipeline\",\"collective\",\"phase\",\"tokens\",\"bytes\","
                 "\"rounds\")] for r in json.load(sys.stdin)]\nprint(len(rows),sorted(rows))'";
    char line[2048];
    snprintf(line, sizeof line, "m=" TINY "; \"$coterie\" %s --ranks 2 | %s", bench, sift);
    capture_shell(&of_threads, line);
    assert_int_equal(of_threads.status, 0);
    assert_memory_equal(of_threads.out, "8 [[2, ", 7);
    snprintf(line, sizeof line, "m=" TINY "; oshrun -np 2 \"$coterie\" %s </dev/null | %s", bench, sift);
    capture_shell(&c, line);
    assert_string_equal(c.out, of_threads.out);
    start("2", "", "bench pipeline $m --tokens 8 --link 1MB/s,0us");
    assert_int_not_equal(c.status, 0);
    assert_string_equal(c.out, "");
    if (!strstr(c.err, "coterie: --link shapes the links of ranks on one host") || own_lines(c.err) != 1)
        fail_msg("%s", c.err);
}

/* Before anything is measured for the number that there is. */
static void several_numbers_of_ranks_are_refused(void **state)
{
    (void)state;
    static const char *const benches[] = {
        "bench pipeline $m --repeat 1 --tokens 8 --ranks 2,3",
        "bench moe --shape 64,32,4,2 --tokens 16 --repeat 5 --ranks 2,3 --fabric shmem"};
    for (int i = 0; i < 2; i++) {
        start("2", "", benches[i]);
        assert_int_not_equal(c.status, 0);
        assert_string_equal(c.out, "");
        if (!strstr(c.err, "coterie: --ranks 3, but 2 processes were started, each of which is a rank\n") ||
            own_lines(c.err) != 1)
            fail_msg("%s", c.err);
    }
}

static void one_prompt_comes_from_standard_input(void **state)
{
    (void)state;
    capture_shell(&of_threads, "m=" TINY "; \"$coterie\" run $m -p 'The town' -n 8");
    static const char *const ways[] = {"-p - -n 8", "-p- -n 8 --timeout 1", "--prompt=- -n 8 --timeout 1"};
    for (int i = 0; i < (getenv("COT_LONG") ? 3 : 1); i++) { // as long as it takes, beyond half a minute
        char line[512];
        snprintf(line, sizeof line,
                 "m=" TINY "; { sleep %d; printf 'The town'; } | oshrun -np 2 \"$coterie\" run $m %s",
                 i ? 33 : 0, ways[i]);
        capture_shell(&c, line);
        if (c.status) fail_msg("%s", c.err);
        assert_string_equal(c.out, of_threads.out);
    }
}

static void what_goes_wrong_is_one_line(void **state)
{
    (void)state;
    static const struct {
        int status; // 0: any but that
        const char *line, *message;
    } bad[] = {
        {0, "run $m -p A --ranks 3",
         "coterie: --ranks 3, but 2 processes were started, each of which is a rank\n"},
        {0, "run $m -p A : -np 1 \"$coterie\" run $m -p A --op bulk", // of three
         "coterie: rank 2 (HOST) has other options than rank 0 (HOST)\n"},
        {0, "run $m -p A : -np 1 \"$coterie\" run $m -p -", // which shares otherwise
         "coterie: rank 2 (HOST): is at another command than rank 0, or has other options\n"},
        {2, "run $m -p A : -np 1 \"$coterie\" run --nosuch",
         "coterie: rank 2 (HOST): unknown option '--nosuch'"},
        {2, "run $m -p A --fabric=processes",
         "coterie: --fabric processes, but 2 processes were started, each of which is a rank (--fabric "
         "shmem)\n"},
        {0, "eval $m --text $m/config.json : -np 1 \"$coterie\" run $m",
         "coterie: rank 2 (HOST): no prompt given: -p TEXT, -p - or -f FILE\n"},
        {0,
         "bench moe --shape 64,32,4,2 --tokens 9 : -np 1 \"$coterie\" bench moe --shape 64,32,4,2 --tokens 9 "
         "--seed 2",
         "coterie: rank 2 (HOST) has other options than rank 0 (HOST)\n"},
        {0, "run $m", "coterie: no prompt given: -p TEXT, -p - or -f FILE\n"}, // these take no other way
        {0, "run /nonexistent -p A", "coterie: cannot open '/nonexistent': No such file or directory\n"},
        {0, "run $m -p A : -np 1 \"$coterie\" run /nonexistent -p A",
         "coterie: rank 2 (HOST): cannot open '/nonexistent': No such file or directory\n"},
        {0, "run $m -p A --fabric nosuch",
         "coterie: unknown fabric 'nosuch' (threads, processes or shmem)\n"},
        {0, "run $m -p A --stats=/nonexistent/s",
         "coterie: cannot write '/nonexistent/s': No such file or directory\n"},
    };
    const size_t cases = getenv("COT_LONG") ? sizeof bad / sizeof *bad : 5;
    for (size_t i = 0; i < cases; i++) {
        start("2", "", bad[i].line);
        char *host;
        char name[80] = "(";
        assert_int_equal(gethostname(name + 1, 64), 0);
        strcat(name, ")");
        while ((host = strstr(c.err, name))) { // in place of the host's own name
            memmove(host + 6, host + strlen(name), strlen(host + strlen(name)) + 1);
            memcpy(host, "(HOST)", 6);
        }
        assert_int_not_equal(c.status, 0);
        if (bad[i].status) assert_int_equal(c.status, bad[i].status);
        assert_string_equal(c.out, "");
        if (!strstr(c.err, bad[i].message) || own_lines(c.err) != 1)
            fail_msg("%s: expected %s, found %s", bad[i].line, bad[i].message, c.err);
    }
}

/* The heaps are weighed before they are made: a process that runs out of /dev/shm is ended by the system, without a word. */
static void a_heap_beyond_the_shared_memory_is_one_line(void **state)
{
    (void)state;
    if (system("unshare -m mount -t tmpfs tmpfs /dev/shm 2>/dev/null") != 0) {
        fprintf(stderr, "SKIPPED: this system gives no /dev/shm of its own\n");
        return;
    }
    static const char *const sizes[] = {"size=5M", "size=500M"}, *const asks[] = {
                                                                     "", "-x SHMEM_SYMMETRIC_HEAP_SIZE=1G"};
    for (int i = getenv("COT_LONG") ? 0 : 1; i < 2; i++) {
        char line[1024];
        snprintf(
            line, sizeof line,
            "unshare -m sh -c \"mount -t tmpfs -o %s tmpfs /dev/shm; exec oshrun -np 2 %s $coterie run " TINY
            " -p A\" </dev/null",
            sizes[i], asks[i]);
        capture_shell(&c, line);
        assert_int_not_equal(c.status, 0);
        assert_string_equal(c.out, "");
        if (!strstr(c.err, "coterie: 2 symmetric heaps of ") ||
            !strstr(c.err, " of shared memory there (/dev/shm)\n") || own_lines(c.err) != 1)
            fail_msg("%s", c.err);
    }
}

/* Open MPI and UCX end a process that may map too little for them, or for the heaps, with pages of their own words. */
static void a_limit_of_memory_is_one_line(void **state)
{
    (void)state;
    static const struct {
        const char *limit, *before, *words;
    } limits[] = {
        {"300000", "", "coterie: Open MPI and UCX take 0.54 GB of memory, of which this process may map "},
        {"3000000", "SHMEM_SYMMETRIC_HEAP_SIZE=2G ", "coterie: 2 symmetric heaps of 2.19 GB on '"}};
    for (int i = 0; i < 4; i++) {
        char line[1024];
        if (i == 1) continue; // before ranks have joined oshrun may end the first for the other's end
        snprintf(line, sizeof line, "ulimit -v %s; %s%s\"$coterie\" run " TINY " -p A%s </dev/null",
                 limits[i / 2].limit, limits[i / 2].before, i % 2 ? "oshrun -np 2 " : "",
                 i % 2 ? "" : " --fabric shmem --ranks 2");
        capture_shell(&c, line);
        assert_int_not_equal(c.status, 0);
        assert_string_equal(c.out, "");
        if (!strstr(c.err, limits[i / 2].words) || own_lines(c.err) != 1 || !strstr(c.err, "(ulimit -v)\n"))
            fail_msg("%s", c.err);
    }
}

/* As a process of 65 is told by who started it: it needs no others to say no. */
static void more_ranks_than_there_may_be_are_refused(void **state)
{
    (void)state;
    capture_shell(&c, "OMPI_COMM_WORLD_SIZE=65 OMPI_COMM_WORLD_RANK=0 \"$coterie\" run " TINY " -p A");
    assert_int_equal(c.status, 1);
    assert_string_equal(c.err, "coterie: ranks 65 is not in [1, 64]\n");
}

/* What a rank other than the first, or a library in it, writes to standard output does not come between texts. */
static void the_first_rank_alone_writes(void **state)
{
    (void)state;
    capture_shell(&c, "OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=1 \"$coterie\" run --help");
    assert_int_equal(c.status, 0);
    assert_string_equal(c.out, "");
    assert_non_null(strstr(c.err, "usage: coterie run"));
}

/* Two builds differ by what the linker has put into them. */
static void another_build_is_found_out(void **state)
{
    (void)state;
    capture_shell(&c, "m=" TINY "; d=$(mktemp -d) && trap 'rm -r $d' EXIT; head -c 36 /dev/urandom >$d/id;"
                      "objcopy -O binary --only-section=.note.gnu.build-id \"$coterie\" $d/id &&"
                      "printf '\\001\\002\\003\\004' | dd of=$d/id bs=1 seek=16 conv=notrunc 2>/dev/null;"
                      "objcopy --update-section .note.gnu.build-id=$d/id \"$coterie\" $d/coterie;"
                      "ln -s $(dirname \"$coterie\")/libcoterie-shmem.so $d/;"
                      "oshrun -np 1 \"$coterie\" run $m -p A : -np 1 $d/coterie run $m -p A </dev/null");
    assert_int_not_equal(c.status, 0);
    if (!strstr(c.err, "has another build of coterie than rank 0") || own_lines(c.err) != 1)
        fail_msg("%s", c.err);
}

static void a_benchmark_is_printed_once(void **state)
{
    (void)state;
    start("2", "", "bench fabric --bytes 8 --seconds 0.001 --json");
    if (c.status) fail_msg("%s", c.err);
    const char *first = strstr(c.out, "\"reduce-scatter\"");
    assert_non_null(first);
    assert_null(strstr(first + 1, "\"reduce-scatter\""));
    assert_string_equal(c.err, "");
    if (!getenv("COT_LONG")) return;
    start("2", "", "bench moe --shape 64,32,4,2 --tokens 16 --repeat 5 --json");
    if (c.status) fail_msg("%s", c.err);
    const char *bulk = strstr(c.out, "\"bulk\"");
    assert_non_null(bulk);
    assert_null(strstr(bulk + 1, "\"bulk\""));
    assert_non_null(strstr(c.out, "\"fused\""));
    assert_string_equal(c.err, "");
}

static void the_program_starts_its_ranks_itself(void **state)
{
    (void)state;
    capture_shell(&of_threads, "m=" TINY "; \"$coterie\" run $m -p 'The town' -n 12 --ranks 3");
    capture_shell(&c, "m=" TINY
                      "; echo localhost slots=3 >hosts.$$; \"$coterie\" run $m -p 'The town' -n 12 --ranks 3 "
                      "--fabric shmem --hostfile hosts.$$ </dev/null; s=$?; rm hosts.$$; exit $s");
    if (c.status) fail_msg("%s", c.err);
    assert_string_equal(c.out, of_threads.out);
    assert_string_equal(c.err, "");
    capture_shell(&c, "\"$coterie\" run " TINY " -p A --fabric shmem --hostfile /nonexistent");
    assert_int_equal(c.status, 1);
    assert_string_equal(c.err, "coterie: cannot read '/nonexistent': No such file or directory\n");
    capture_shell(&c, "\"$coterie\" run " TINY " -p A --fabric shmem --hostfile /");
    assert_string_equal(c.err, "coterie: cannot read '/': Is a directory\n");
    capture_shell(&c, "\"$coterie\" run " TINY " -p A --hostfile /nonexistent");
    assert_int_equal(c.status, 2);
    assert_string_equal(c.err, "coterie: --hostfile is for --fabric shmem\n");
}

/* Hosts that refuse, that are never heard of, and a file that names none: one line each, after a note of whom is waited for, and
 * nothing is left. What stands for ssh there is a script. */
static void hosts_that_cannot_be_started_on_are_one_line(void **state)
{
    (void)state;
    static const struct {
        const char *ssh, *hosts, *words;
    } faults[] = {
        {"exit 255", "10.9.8.7", "coterie: 10.9.8.7 of '"},
        {"exit 255", "localhost slots=x", "coterie: oshrun: "},
        {"exit 255", "", "coterie: oshrun: "},
        {"exec sleep 1000", "10.9.8.7",
         "coterie: note: no answer yet from 10.9.8.7\n"
         "coterie: oshrun has started no rank within 6.0 s: no answer from 10.9.8.7\n"},
    };
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        char line[1024];
        snprintf(
            line, sizeof line,
            "d=$(mktemp -d); trap 'rm -r $d' EXIT; printf '#!/bin/sh\necho $$ >>%%s/started; %s\n' $d "
            ">$d/ssh;"
            "chmod +x $d/ssh; echo '%s' >$d/hosts; PATH=$d:$PATH timeout 100 \"$coterie\" run " TINY
            " -p A --fabric shmem --ranks 2 --timeout 1 --hostfile $d/hosts </dev/null; s=$?;"
            "for p in $(cat $d/started 2>/dev/null); do kill -0 $p 2>/dev/null && echo left; done; exit $s",
            faults[i].ssh, faults[i].hosts);
        capture_shell(&c, line);
        assert_int_equal(c.status, 1);
        assert_string_equal(c.out, "");
        const char *const note = "coterie: note: ", *last = c.err;
        if (!strncmp(last, note, strlen(note))) last = strchr(last, '\n') + 1;
        const char *end = strchr(last, '\n');
        if (strncmp(c.err, faults[i].words, strlen(faults[i].words)) != 0 || !end || end[1])
            fail_msg("'%s' by '%s': %s", faults[i].hosts, faults[i].ssh, c.err);
    }
}

/* While it generates, rank 2, and rank 0 of another group, is killed, and rank 0 of a third is stopped: the others say so and
 * end, and what started them ends when they have. So do all ranks where that is asked to end. */
static void a_rank_that_is_killed_or_stopped_is_named(void **state)
{
    (void)state;
    static const char files[] = "ls /dev/shm | grep -c vader";
    static const struct {
        const char *starter, *victim, *signal, *timeout;
        int status;
        const char *words;
    } faults[] = {
        {"$coterie run --fabric shmem --ranks 4", "$(of 2)", "KILL", "1000", 1,
         "coterie: rank 2 ended while rank "},
        {"$coterie run --fabric shmem --ranks 4", "$(of 0)", "STOP", "2", 1,
         "coterie: rank 0 did not answer"},
        {"$coterie run --fabric shmem --ranks 4", "$p", "TERM", "1000", 128 + SIGTERM, ""},
        /* Nobody ends what is left here: it leaves Open MPI without the others. */
        {"oshrun --enable-recovery -np 2 $coterie run", "$(of 1)", "KILL", "1000", 0,
         "coterie: rank 1 ended while rank 0 "},
        {"$coterie run --fabric shmem --ranks 4", "$(of 3)", "TERM", "1000", 1,
         "coterie: rank 3 ended while rank "},
        {"$coterie run --fabric shmem --ranks 4", "$(of 0)", "KILL", "1000", 1,
         "coterie: rank 0 ended while rank "},
    };
    const size_t cases = sizeof faults / sizeof *faults - (getenv("COT_LONG") ? 0 : 2);
    static capture before;
    capture_shell(&before, files);
    for (size_t i = 0; i < cases; i++) {
        char line[2048];
        snprintf(line, sizeof line,
                 "d=$(mktemp -d); trap 'rm -r $d' EXIT; mkfifo $d/text; exec </dev/null; export "
                 "COT_VICTIMS=$$.%zu;"
                 "of() { grep -lsz \"^OMPI_COMM_WORLD_RANK=$1\" $(grep -lsz \"^COT_VICTIMS=$COT_VICTIMS$\" "
                 "/proc/[0-9]*/environ) /dev/null | cut -d/ -f3; };"
                 "timeout 120 %s " TINY
                 " $(printf ' -p town%%.0s' 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 "
                 "19 20) -n 400 --ignore-eos --timeout %s >$d/text & p=$!; exec 9<$d/text;"
                 "head -c 20 <&9 >/dev/null;" // it is at work
                 "kill -%s %s; cat <&9 >/dev/null; wait $p; s=$?; of ''; exit $s",
                 i, faults[i].starter, faults[i].timeout, faults[i].signal, faults[i].victim);
        capture_shell(&c, line);
        assert_int_equal(c.status, faults[i].status);
        const char *said = strstr(c.err, faults[i].words); // before it oshrun may have something to say
        if (!said || (said != c.err && *faults[i].starter == '$')) fail_msg("%s", c.err);
        assert_string_equal(c.out, ""); // no rank is left
    }
    capture_shell(&c, files); // no shared memory stays behind
    assert_string_equal(c.out, before.out);
}

/* Under a plain oshrun nobody else looks: a rank that is stopped before it has begun, as at any time before they meet. */
static void ranks_that_never_meet_end(void **state)
{
    (void)state;
    if (!getenv("COT_LONG")) return; // half a minute
    capture_shell(&c, "exec </dev/null; m=" TINY
                      "; timeout 100 oshrun -np 1 \"$coterie\" run $m -p A --timeout 1 : -np 1 sh -c "
                      "'kill -STOP $$; exec \"$coterie\" run '$m' -p A --timeout 1'");
    assert_int_equal(c.status, 1);
    assert_string_equal(c.out, "");
    assert_non_null(strstr(c.err, "coterie: rank 0: the ranks have not met within 30.0 s\n"));
    assert_int_equal(own_lines(c.err), 1);
}

/* As in a terminal, where all get it: what Open MPI keeps of a run, in a folder of its own, goes with the run. */
static void control_c_leaves_nothing(void **state)
{
    (void)state;
    capture_shell(&c, "d=$(mktemp -d); trap 'rm -r $d' EXIT; mkfifo $d/text; mkdir $d/t; exec </dev/null;"
                      "TMPDIR=$d/t setsid \"$coterie\" run " TINY
                      " $(printf ' -p town%.0s' 1 2 3 4 5 6 7 8 9 10) -n 400 --ignore-eos --fabric shmem "
                      "--ranks 2 >$d/text & p=$!; exec 9<$d/text; head -c 20 <&9 >/dev/null;"
                      "kill -s INT -- -$p; wait $p; s=$?; cat <&9 >/dev/null; ls $d/t; exit $s");
    assert_string_equal(c.out, "");
    assert_string_equal(c.err, "");
    assert_int_equal(c.status, 128 + SIGINT);
}

/* Each test in a process of its own, some at a time: they mostly wait for oshrun. */
int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_that_is_killed_or_stopped_is_named),
        cmocka_unit_test(ranks_that_never_meet_end),
        cmocka_unit_test(hosts_that_cannot_be_started_on_are_one_line),
        cmocka_unit_test(what_goes_wrong_is_one_line),
        cmocka_unit_test(control_c_leaves_nothing),
        cmocka_unit_test(what_threads_print_is_printed),
        cmocka_unit_test(what_ucx_warns_of_is_no_output),
        cmocka_unit_test(logits_are_those_of_threads),
        cmocka_unit_test(a_benchmark_is_printed_once),
        cmocka_unit_test(ways_of_a_pipeline_are_measured),
        cmocka_unit_test(several_numbers_of_ranks_are_refused),
        cmocka_unit_test(one_prompt_comes_from_standard_input),
        cmocka_unit_test(a_heap_beyond_the_shared_memory_is_one_line),
        cmocka_unit_test(a_limit_of_memory_is_one_line),
        cmocka_unit_test(more_ranks_than_there_may_be_are_refused),
        cmocka_unit_test(the_first_rank_alone_writes),
        cmocka_unit_test(another_build_is_found_out),
        cmocka_unit_test(the_program_starts_its_ranks_itself),
    };
    enum { COUNT = sizeof tests / sizeof *tests, AT_ONCE = 3 };
    int failed = 0;
    if (!oshrun_is_here()) return 77;
    oshrun_allow();
    fflush(stdout);
    for (int i = 0; i < COUNT + AT_ONCE; i++) {
        pid_t ended;
        if (i >= AT_ONCE) failed += oshrun_end_any(&ended) != 0;
        if (i >= COUNT || fork() != 0) continue;
        const struct CMUnitTest one[] = {tests[i]};
        exit(cmocka_run_group_tests_name(tests[i].name, one, NULL, NULL));
    }
    return failed != 0;
}
