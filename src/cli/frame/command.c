#include "cli/frame/command.h"
#include "cli/frame/margin.h"
#include "cli/frame/progress.h"
#include "cli/frame/terminal.h"
#include "coterie/start.h"
#include "coterie/started.h"
#include "coterie/version.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What this process is among others. */
static struct {
    bool is_rank, served;
    cot_error complaint; // the last
} group;

bool cli_is_rank(void)
{
    return group.is_rank;
}

bool cli_is_other_rank(void)
{
    return group.is_rank && cot_launch_started().rank > 0;
}

static void tell_complaint(const char *line)
{
    static const char name[] = "coterie: ";
    const bool warning = !strncmp(line, "warning: ", 9);
    const char *begin = warning ? cli_colour_on(stderr, CLI_COLOUR_YELLOW) : "",
               *end = warning ? cli_colour_on(stderr, CLI_COLOUR_NONE) : "";
    cli_margin m;
    cli_progress_make_way();
    cli_margin_begin(&m, stderr);
    if (!m.columns) { // one write, so that lines of several processes stay whole
        fprintf(stderr, "%s%s%s%s\n", name, begin, line, end);
        return;
    }
    cli_margin_write(&m, name, strlen(name));
    fputs(begin, stderr); // a colour has no width
    cli_margin_write(&m, line, strlen(line));
    fprintf(stderr, "%s\n", end);
}

int cli_complain(const char *format, ...)
{
    static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER; // of threads that each serve
    char line[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    for (unsigned char *c = (unsigned char *)line; *c; c++)
        if (*c < 0x20 || *c == 0x7f) *c = '?';
    pthread_mutex_lock(&one_at_a_time);
    snprintf(group.complaint.message, sizeof group.complaint.message, "%.*s",
             (int)sizeof group.complaint.message - 1, line);
    if (!cli_is_other_rank() || cot_launch_met()) tell_complaint(line);
    pthread_mutex_unlock(&one_at_a_time);
    return CLI_EXIT_FAILURE;
}

int cli_complain_of(const cot_error *error)
{
    if (error->status == COT_SERVED) {
        group.served = true;
        return CLI_EXIT_OK;
    }
    return cli_complain("%s", error->message[0] ? error->message : cot_status_text(error->status));
}

void cli_tell_notes(const char *notes)
{
    static const char mark[] = "warning: ";
    for (; notes && *notes; notes += strcspn(notes, "\n"), notes += *notes == '\n') {
        const int length = (int)strcspn(notes, "\n");
        if (strncmp(notes, mark, strlen(mark)) != 0)
            fprintf(stderr, "note: %.*s\n", length, notes);
        else
            cli_complain("%.*s", length, notes);
    }
}

void cli_note_carriers(void)
{
    if (!cot_launch_carriers()) return;
    cli_progress_make_way();
    fprintf(stderr, "note: messages between hosts are carried by %s\n", cot_launch_carriers());
}

/* How many of argv's first words spell the command's name; 0 when they do not. */
static int spells(const cli_command *command, int argc, char **argv)
{
    const char *name = command->name;
    for (int i = 0; i < argc; i++) {
        size_t length = strlen(argv[i]);
        if (strncmp(name, argv[i], length)) return 0;
        if (!name[length]) return i + 1;
        if (name[length] != ' ') return 0;
        name += length + 1;
    }
    return 0;
}

bool cli_command_is_of(const cli_command *command, const char *family)
{
    size_t length = strlen(family);
    return !strncmp(command->name, family, length) && command->name[length] == ' ';
}

/* `word` is the first of a two-word command: shows those that begin with it. */
static bool complain_of_family(const cli_command *const *commands, const char *word)
{
    char all[512] = "";
    size_t used = 0;
    for (; *commands && used < sizeof all; commands++)
        if (cli_command_is_of(*commands, word))
            used += (size_t)snprintf(all + used, sizeof all - used, "%s'%s'", used ? ", " : "",
                                     (*commands)->name);
    if (used) cli_complain("'%s' is one of %s", word, all);
    return used > 0;
}

static int unknown(const cli_command *const *commands, int argc, char **argv)
{
    if (complain_of_family(commands, argv[0])) return CLI_EXIT_USAGE;
    const char *names[64] = {"help"};
    for (size_t n = 1; n < 63 && *commands; n++) names[n] = (*commands++)->name;
    char two_words[64];
    snprintf(two_words, sizeof two_words, "%s %s", argv[0], argc > 1 ? argv[1] : "");
    const char *nearest = cli_nearest(argv[0], names);
    if (!nearest && argc > 1) nearest = cli_nearest(two_words, names);
    if (nearest)
        cli_complain("unknown command '%s' (did you mean '%s'?)", argv[0], nearest);
    else
        cli_complain("unknown command '%s' (see coterie --help)", argv[0]);
    return CLI_EXIT_USAGE;
}

/* The field of that option, or NULL. */
static const void *field_of(const cli_command *command, const void *settings, const char *name)
{
    for (const cli_option_group *g = command->options.groups; g && g->title; g++)
        for (const cli_option *row = g->options; row->name; row++)
            if (!strcmp(row->name, name)) return (const char *)settings + g->offset + row->offset;
    return NULL;
}

static const char *text_of(const cli_command *command, const void *settings, const char *name)
{
    const char *const *field = field_of(command, settings, name);
    return field ? *field : NULL;
}

/* How many ranks are asked for: a number, or one in words where a benchmark takes a list; -1: several numbers. */
static int64_t ranks_of(const cli_command *command, const void *settings)
{
    static const char ranks[] = "ranks";
    for (const cli_option_group *g = command->options.groups; g && g->title; g++)
        for (const cli_option *row = g->options; row->name; row++)
            if (!strcmp(row->name, ranks) && row->kind == CLI_OPTION_INTEGER)
                return *(const int64_t *)field_of(command, settings, ranks);
    const char *text = text_of(command, settings, ranks);
    return !text ? 0 : strchr(text, ',') ? -1 : atoll(text);
}

/* In seconds; commands with ranks keep it in nanoseconds. */
static double timeout_of(const cli_command *command, const void *settings)
{
    const int64_t *timeout_ns = field_of(command, settings, "timeout");
    return timeout_ns ? (double)*timeout_ns * 1e-9 : 300;
}

static void complain_line(const char *line)
{
    cli_complain("%s", line);
}

/* Where the group is of processes that nobody has started yet, this one starts them and is none of them. */
static bool starts_ranks(const cli_command *command, const void *settings, char **argv, int *status)
{
    const char *fabric = text_of(command, settings, "fabric");
    const char *hostfile = text_of(command, settings, "hostfile");
    const bool of_hosts = fabric && !strcmp(fabric, "shmem") && field_of(command, settings, "hostfile");
    if (hostfile && !of_hosts) {
        cli_complain("--hostfile is for --fabric shmem");
        *status = CLI_EXIT_USAGE;
        return true;
    }
    if (!of_hosts || cot_launch_started().ranks) return false;
    const int64_t ranks = ranks_of(command, settings);
    if (ranks < 0) {
        cli_complain("--fabric shmem starts one number of ranks, not --ranks %s",
                     text_of(command, settings, "ranks"));
        *status = CLI_EXIT_USAGE;
        return true;
    }
    *status = cot_start_ranks(&(cot_start_options){.ranks = ranks < 1 ? 1 : (int)ranks,
                                                   .hostfile = hostfile,
                                                   .timeout_s = timeout_of(command, settings),
                                                   .argv = argv,
                                                   .complain = complain_line});
    return true;
}

/* What was given as --fabric, before anything else is looked at; NULL: nothing was. */
static const char *fabric_of(int argc, char **argv)
{
    const char *fabric = NULL;
    for (int i = 0; i < argc; i++) {
        if (!strncmp(argv[i], "--fabric=", 9)) fabric = argv[i] + 9;
        if (!strcmp(argv[i], "--fabric") && i + 1 < argc) fabric = argv[i + 1];
    }
    return fabric;
}

static bool makes_own_ranks(const char *fabric)
{
    return fabric && (!strcmp(fabric, "threads") || !strcmp(fabric, "processes"));
}

static bool will_be_rank(const cli_command *command, const char *fabric)
{
    const int ranks = cot_launch_started().ranks;
    if (ranks < 1 || !field_of(command, "", "fabric") || makes_own_ranks(fabric)) return false;
    return fabric || ranks > 1;
}

/* Each of several processes would run the whole model by itself. One of them says so. */
static int refuse_own_ranks(const char *fabric)
{
    const cot_launch_place place = cot_launch_started();
    if (place.rank == 0)
        cli_complain("--fabric %s, but %d processes were started, each of which is a rank (--fabric shmem)",
                     fabric, place.ranks);
    return CLI_EXIT_USAGE;
}

/* Where this rank fails before there is a group, the others hear why, and all end alike. Where they cannot, as there is no
 * OpenSHMEM, the first rank of each host says so. */
static int end_as_rank(int status)
{
    const cot_launch_place place = cot_launch_started();
    if (group.served) status = CLI_EXIT_OK;
    if (status != CLI_EXIT_OK && !cot_launch_refuse(&group.complaint, status) && place.rank > 0 &&
        place.here_rank == 0) {
        char host[64] = "", line[sizeof group.complaint.message + sizeof host + 32];
        gethostname(host, sizeof host - 1);
        snprintf(line, sizeof line, "rank %d (%s): %s", place.rank, host, group.complaint.message);
        tell_complaint(line);
    }
    if (status != CLI_EXIT_OK && cot_launch_refused()) status = cot_launch_refused();
    fflush(NULL);
    const bool lost = place.rank > 0 && cot_launch_torn();
    cot_launch_tell("ends", lost && status == CLI_EXIT_OK ? CLI_EXIT_FAILURE : status);
    return status;
}

static int run(const cli_command *command, int argc, char **argv, char **whole_argv)
{
    const char *fabric = field_of(command, "", "fabric") ? fabric_of(argc, argv) : NULL;
    if (makes_own_ranks(fabric) && cot_launch_started().ranks > 1) return refuse_own_ranks(fabric);
    void *settings = calloc(1, command->settings_bytes + 1);
    if (!settings) return cli_complain("out of memory");
    bool help;
    int status = CLI_EXIT_USAGE;
    group.is_rank = will_be_rank(command, fabric);
    if (group.is_rank) cot_start_tell();
    if (cli_is_other_rank()) dup2(STDERR_FILENO, STDOUT_FILENO); // where UCX writes what goes wrong
    if (cli_options_parse(&command->options, settings, argc, argv, &help)) {
        if (help) cli_help_command(command);
        if (group.is_rank && !help) cot_start_bound_meeting(timeout_of(command, settings));
        const bool wrong = !help && command->check && !command->check(settings);
        if (!wrong && (help || !starts_ranks(command, settings, whole_argv, &status)))
            status = help ? CLI_EXIT_OK : command->run(settings);
    }
    cli_options_free(&command->options, settings);
    free(settings);
    return group.is_rank ? end_as_rank(status) : status;
}

static bool asks_for_help(const char *argument)
{
    return !strcmp(argument, "--help") || !strcmp(argument, "-h");
}

static int dispatch(const cli_command *const *commands, int argc, char **argv)
{
    char **whole = argv - 1; // with the program's name
    bool help = argc > 0 && !strcmp(argv[0], "help");
    if (!argc) {
        cli_complain("no command given (see coterie --help)");
        return CLI_EXIT_USAGE;
    }
    if (!strcmp(argv[0], "--version")) {
        printf("coterie %s\n", cot_version());
        return CLI_EXIT_OK;
    }
    if (asks_for_help(argv[0]) || (help && argc == 1)) {
        cli_help_overview(commands);
        return CLI_EXIT_OK;
    }
    argc -= help;
    argv += help;
    for (const cli_command *const *command = commands; *command; command++) {
        int words = spells(*command, argc, argv);
        if (!words) continue;
        if (!help) return run(*command, argc - words, argv + words, whole);
        cli_help_command(*command);
        return CLI_EXIT_OK;
    }
    if ((help ? argc == 1 : argc > 1 && asks_for_help(argv[1])) && cli_help_family(commands, argv[0]))
        return CLI_EXIT_OK;
    return unknown(commands, argc, argv);
}

/* A standard descriptor that is closed would be given to the next file that is opened: occupy it so that its
 * use fails. */
static void occupy_standard_descriptors(void)
{
    for (int fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd ? O_RDONLY : O_WRONLY) < 0)
            _exit(CLI_EXIT_FAILURE);
}

int cli_command_main(const cli_command *const *commands, int argc, char **argv)
{
    occupy_standard_descriptors();
    signal(SIGPIPE, SIG_IGN); // writes that cannot be done fail, and are told
    signal(SIGXFSZ, SIG_IGN);
    int status = dispatch(commands, argc > 0 ? argc - 1 : 0, argv + 1);
    errno = 0;
    bool failed = fflush(stdout) != 0 || ferror(stdout);
    if (failed && status == CLI_EXIT_OK)
        status = cli_complain("cannot write to standard output%s%s", errno ? ": " : "",
                              errno ? strerror(errno) : "");
    return status;
}
