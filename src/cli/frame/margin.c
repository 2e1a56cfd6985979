#include "cli/frame/margin.h"

#include "cli/frame/terminal.h"

#include <locale.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ioctl.h>
#include <wchar.h>

void cli_margin_begin(cli_margin *m, FILE *file)
{
    struct winsize size;
    const bool known = cli_terminal(file) && ioctl(fileno(file), TIOCGWINSZ, &size) == 0;
    *m = (cli_margin){.file = file, .columns = known ? size.ws_col : 0};
}

void cli_margin_leave(cli_margin *m)
{
    m->bytes = 0;
    m->width = 0;
    m->stays = false;
}

static void end_line(cli_margin *m)
{
    putc('\n', m->file);
    m->column = 0;
}

/* Makes room for `width` columns in the line; the last column of a terminal stays empty, since behind it the cursor is nowhere. */
static void make_room(cli_margin *m, int width)
{
    if (m->column + width < m->columns) return;
    if (m->stays || m->width == m->column) { // a word as long as the line
        m->stays = true;
        if (m->column + width > m->columns) m->column = 0; // where the terminal goes on by itself
        return;
    }
    if (m->bytes) fprintf(m->file, "\033[%dD\033[K", m->width);
    end_line(m);
    fwrite(m->word, 1, m->bytes, m->file);
    m->column = m->width;
}

static void write_space(cli_margin *m, char space)
{
    cli_margin_leave(m);
    if (m->column >= m->columns) return; // one between two lines is not seen
    putc(space, m->file);
    m->column = space == '\t' ? (m->column | 7) + 1 : m->column + 1;
}

static void write_character(cli_margin *m, const char *text, size_t bytes, int width)
{
    if (m->in_a_fence) {
        m->column = m->column + width > m->columns ? width : m->column + width;
        fwrite(text, 1, bytes, m->file);
        return;
    }
    if (width > 1) cli_margin_leave(m); // lines may break before and after an ideograph
    make_room(m, width);
    fwrite(text, 1, bytes, m->file);
    m->column += width;
    if (width > 1) return;
    if (m->bytes + bytes > sizeof m->word) m->stays = true;
    if (m->stays) return;
    memcpy(m->word + m->bytes, text, bytes);
    m->bytes += bytes;
    m->width += width;
}

/* Three ticks at the beginning of a line begin lines of code, or end them. */
static void look_for_a_fence(cli_margin *m, char first)
{
    if (m->ticks < 0 || first == ' ') return;
    m->ticks = first == '`' ? m->ticks + 1 : -1;
    if (m->ticks == 3) m->in_a_fence = !m->in_a_fence;
}

/* By which characters have the same widths whatever language the person speaks. Made once, for as long as the program runs: text comes
 * in pieces of a few bytes. */
static locale_t locale_of_widths(void)
{
    static locale_t widths;
    if (!widths) widths = newlocale(LC_CTYPE_MASK, "C.UTF-8", (locale_t)0);
    return widths;
}

void cli_margin_write(cli_margin *m, const char *text, size_t bytes)
{
    const locale_t widths = m->columns ? locale_of_widths() : (locale_t)0;
    if (!widths) {
        fwrite(text, 1, bytes, m->file);
        return;
    }
    const locale_t before = uselocale(widths);
    for (size_t at = 0, n; at < bytes; at += n) {
        wchar_t character;
        n = mbrtowc(&character, text + at, bytes - at, &(mbstate_t){0});
        const bool good = n && n <= bytes - at;
        const int width = good ? wcwidth(character) : 0;
        n = good ? n : 1;
        look_for_a_fence(m, text[at]);
        if (text[at] == '\n') {
            end_line(m);
            cli_margin_leave(m);
            m->ticks = 0;
        } else if (text[at] == ' ' || text[at] == '\t')
            write_space(m, text[at]);
        else
            write_character(m, text + at, n, width > 0 ? width : 0);
    }
    uselocale(before);
}

void cli_margin_print(FILE *file, const char *format, ...)
{
    char text[4096];
    cli_margin m;
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    cli_margin_begin(&m, file);
    cli_margin_write(&m, text, strlen(text));
}
