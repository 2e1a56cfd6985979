/* Says which Coterie it was built with. Uses the installed package alone:
 *     cc -std=c17 hello.c $(pkg-config --cflags --libs coterie) -o hello */
#include <coterie/coterie.h>
#include <stdio.h>

int main(void)
{
    printf("coterie %s: %s\n", cot_version(), cot_status_text(COT_OK));
    return 0;
}
