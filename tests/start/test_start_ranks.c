/* `--fabric shmem`, which starts oshrun: what stands for that here is a script, so that no Open MPI is needed. */
#include "harness/cli/broken.h"
#include "harness/cli/capture.h"
#include "harness/cmocka.h"

#include "coterie/start.h"

#include <stdio.h>
#include <string.h>

static capture c;

/* The program started with such a script for oshrun, in which `say N WORDS` is what rank N tells who has started it; more of the
 * command line, and what the shell does before and after. $d is a folder of its own. */
static void start(const char *script, const char *more, const char *before, const char *after)
{
    char line[4096];
    snprintf(line, sizeof line,
             "d=$(mktemp -d); trap 'rm -r $d' EXIT; mkdir $d/t; export d h=$(hostname) TMPDIR=$d/t; cat "
             ">$d/oshrun <<'E'\n"
             "#!/bin/bash\nsay() { printf '\\001coterie rank %%d %%s %%d process %%d of %%s\\n' $1 $2 $3 "
             "${4:-1} ${5:-$h} >&2; }\n"
             "%s\nE\nchmod +x $d/oshrun; PATH=$d:$PATH; %s\"$coterie\" run " TINY
             " -p A --fabric shmem %s </dev/null; s=$?; %s; exit $s",
             script, before, more, after);
    capture_shell(&c, line);
}

static void expect(int status, const char *out, const char *err)
{
    assert_string_equal(c.err, err);
    assert_string_equal(c.out, out);
    assert_int_equal(c.status, status);
}

/* A rank that is lost when the first has ended well takes nothing from it. */
static void what_open_mpi_says_of_an_end_that_was_good_is_not_told(void **state)
{
    (void)state;
    start("say 0 begins 0; say 1 begins 0\n"
          "echo '[host1:7:0] flush.c:26 UCX ERROR req 0x5: error during flush: Endpoint timeout' >&2\n"
          "say 0 ends 0; r=$(printf %070d 0 | tr 0 -)\nprintf '%s\\nWARNING: a peer is gone.\\n%s\\n' $r $r "
          ">&2; exit 1",
          "--ranks 2", "", ":");
    expect(0, "", "");
}

/* Nor is what a server logs a failure of its group, which would be ended a second later; nor a note or a warning. */
static void what_is_no_failure_ends_nothing(void **state)
{
    (void)state;
    start("say 0 serves 9; echo 'coterie: it is logged' >&2; sleep 2; say 0 ends 0", "--ranks 2", "", ":");
    expect(0, "", "coterie: it is logged\n");
    start("say 0 met 0; echo 'coterie: note: N' >&2; echo 'coterie: warning: W' >&2; sleep 2; echo text; say "
          "0 ends 0",
          "--ranks 2", "", ":");
    expect(0, "text\n", "coterie: note: N\ncoterie: warning: W\n");
}

/* Where the first rank, which would name one that died, works on by itself: another has noticed and ended. And oshrun, which
 * does not end when it is asked to, leaves its folder. */
static void a_death_that_no_rank_tells_is_told(void **state)
{
    (void)state;
    start("trap '' TERM; mkdir -p $TMPDIR/ompi.x.$(id -u)/pid.$$/1\n"
          "say 0 met 0; say 1 met 0 9999999; say 2 ends 1; exec sleep 100",
          "--ranks 3 --timeout 1", "", "ls $d/t");
    expect(1, "", "coterie: rank 1 ended\n");
}

/* A program that was stopped itself for longer than the time-out, as by Ctrl-Z, does not hold it against ranks of another host. */
static void a_pause_blames_nobody(void **state)
{
    (void)state;
    start("say 0 met 0; say 1 meets 0 7 far; kill -STOP $PPID; sleep 1.5; kill -CONT $PPID; sleep 0.3; "
          "echo text; say 1 met 0 7 far; say 0 ends 0",
          "--ranks 2 --timeout 1", "", ":");
    expect(0, "text\n", "");
}

/* A folder is left, too, by one that ends by itself; and nobody says why in place of it. */
static void an_end_of_oshrun_is_told(void **state)
{
    (void)state;
    static const char folder[] = "mkdir -p $TMPDIR/ompi.x.$(id -u)/pid.$$/1; say 0 met 0; say 1 met 0; ";
    static const struct {
        const char *end, *told;
    } ends[] = {{"kill -9 $$", "coterie: oshrun was killed by signal 9\n"},
                {"exit 3", "coterie: oshrun ended before its ranks had\n"}};
    for (int i = 0; i < 2; i++) {
        char script[256];
        snprintf(script, sizeof script, "%s%s", folder, ends[i].end);
        start(script, "--ranks 2", "", "ls $d/t");
        expect(1, "", ends[i].told);
    }
}

/* All words go through, however many; one that oshrun would take for its own goes with its option. */
static void words_are_handed_on(void **state)
{
    (void)state;
    start("say 0 ends 0; printf '%s\\n' \"$@\" | sed '1,/^run$/d' >$d/words",
          "-p : --stop : --stop=: $(for i in $(seq 300); do echo -p x$i; done) -n 1", "",
          "sed 1d $d/words | head -n 9 | tr '\\n' ' '; tail -n 3 $d/words | tr '\\n' ' '; wc -l <$d/words");
    expect(0, "-p A --fabric shmem -p: --stop=: --stop=: -p x1 x300 -n 1 610\n", "");
    capture_shell(&c, "d=$(mktemp -d); trap 'rm -r $d' EXIT; printf '#!/bin/sh\\necho \"$*\"\\n' >$d/oshrun;"
                      "chmod +x $d/oshrun; PATH=$d:$PATH \"$coterie\" run : -p A --fabric shmem </dev/null");
    assert_non_null(strstr(c.out, " run ./: -p A --fabric shmem\n")); // a model of that name
}

/* Ranks are started once. */
static void several_numbers_of_ranks_are_refused(void **state)
{
    (void)state;
    capture_shell(&c, "\"$coterie\" bench moe --ranks 1,2 --fabric shmem </dev/null");
    expect(2, "", "coterie: --fabric shmem starts one number of ranks, not --ranks 1,2\n");
}

/* What ranks write comes out whole; where it cannot be written that is told, and the exit status is a failure's. */
static void output_that_is_not_written_is_told(void **state)
{
    (void)state;
    start("seq 100000; say 0 ends 0", "--ranks 2 >$d/out", "", "seq 100000 | cmp - $d/out");
    expect(0, "", "");
    start("seq 100000; say 0 ends 0", "--ranks 2 >/dev/full", "", ":");
    expect(1, "", "coterie: cannot write to standard output: No space left on device\n");
}

/* A terminal that does not block takes part of what there is, or nothing, when it is read slowly. */
static void output_is_written_piece_by_piece(void **state)
{
    (void)state;
    start("seq 100000; say 0 ends 0", "--ranks 2 >$d/out",
          "cat >$d/slow.py <<'E'\n"
          "import os, subprocess, sys, time, tty\n"
          "ours, theirs = os.openpty()\n"
          "tty.setraw(theirs)\n"
          "os.set_blocking(theirs, False)\n"
          "with subprocess.Popen(sys.argv[1:], stdout=theirs) as process:\n"
          "    os.close(theirs)\n"
          "    try:\n"
          "        while part := os.read(ours, 3000):\n"
          "            sys.stdout.buffer.write(part)\n"
          "            time.sleep(0.001)\n"
          "    except OSError:  # nobody writes any more\n"
          "        pass\n"
          "sys.exit(process.returncode)\n"
          "E\n"
          "python3 $d/slow.py ",
          "seq 100000 | cmp - $d/out");
    expect(0, "", "");
}

/* Of shared memory that a killed rank has left under a name: not what was there before, nor what a process holds. A program
 * that somebody else started before that, and that ends in the meantime, takes what was there, too: then once more. */
static void segments_that_nobody_holds_are_removed(void **state)
{
    (void)state;
    for (int i = 0; i < 8; i++) {
        start("echo >$m.left; say 0 ends 0; say 1 ends 0", "--ranks 2",
              "export m=/dev/shm/ucx_shm_posix_cot$$; echo >$m.old; sleep 1.1; exec 8>$m.open; ",
              "for n in left old open; do [ ! -e $m.$n ] || echo $n; done; rm -f $m.*");
        if (strcmp(c.out, "open\n") != 0) break;
    }
    expect(0, "old\nopen\n", "");
}

/* The others have left already when the last says why; and where no rank says why, it is said that one failed. */
static void a_rank_that_fails_has_its_words_or_is_named(void **state)
{
    (void)state;
    start(
        "say 0 begins 0; say 1 begins 0; say 1 ends 1; sleep 0.4; echo 'coterie: no room' >&2; say 0 ends 1; "
        "exit 1",
        "--ranks 2 --timeout 20", "", ":");
    expect(1, "", "coterie: no room\n");
    start("say 0 begins 0; say 1 begins 0; say 1 ends 3; say 0 lives 0; exit 1", "--ranks 2 --timeout 20", "",
          ":");
    expect(3, "", "coterie: rank 1 ended with status 3 and did not say why\n");
}

/* Hosts that ssh reaches, and from which nothing comes back, are named, and not waited for much longer than asked. */
static void hosts_that_do_not_connect_back_are_named(void **state)
{
    (void)state;
    start("exec sleep 100", "--ranks 2 --timeout 1 --hostfile $d/hosts",
          "export OMPI_MCA_plm_rsh_agent=true; echo 10.9.8.7 >$d/hosts; ", ":");
    expect(1, "",
           "coterie: note: no rank has begun yet on 10.9.8.7\n"
           "coterie: oshrun has started no rank within 10.0 s: ssh works to 10.9.8.7, from where nothing "
           "connects back (a firewall?)\n");
}

/* ---- through the library ---- */

static char said[256];

static void hear(const char *line)
{
    snprintf(said, sizeof said, "%s", line);
}

static void what_cannot_be_started_is_told(void **state)
{
    (void)state;
    char *words[] = {(char[]){"test"}, NULL};
    cot_start_options options = {.ranks = 65, .timeout_s = 1, .argv = words, .complain = hear};
    assert_int_equal(cot_start_ranks(&options), 1);
    assert_string_equal(said, "65 ranks, more than 64");
    options.ranks = 2;
    options.hostfile = "/nowhere";
    assert_int_equal(cot_start_ranks(&options), 1);
    assert_string_equal(said, "cannot read '/nowhere': No such file or directory");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_that_fails_has_its_words_or_is_named),
        cmocka_unit_test(hosts_that_do_not_connect_back_are_named),
        cmocka_unit_test(what_open_mpi_says_of_an_end_that_was_good_is_not_told),
        cmocka_unit_test(what_is_no_failure_ends_nothing),
        cmocka_unit_test(a_death_that_no_rank_tells_is_told),
        cmocka_unit_test(a_pause_blames_nobody),
        cmocka_unit_test(an_end_of_oshrun_is_told),
        cmocka_unit_test(words_are_handed_on),
        cmocka_unit_test(several_numbers_of_ranks_are_refused),
        cmocka_unit_test(output_that_is_not_written_is_told),
        cmocka_unit_test(output_is_written_piece_by_piece),
        cmocka_unit_test(segments_that_nobody_holds_are_removed),
        cmocka_unit_test(what_cannot_be_started_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
