/* `coterie serve --mock`: workers that compute nothing, on consecutive ports of one process. */
#ifndef COT_CLI_SERVE_SERVE_MOCK_H
#define COT_CLI_SERVE_SERVE_MOCK_H
#include "coterie/server.h"

typedef struct cli_mock_settings {
    const char *spec;                 // a file
    const char *tokenizer;            // a folder with one; NULL: bytes
    const char *chat_template;        // a file; NULL: the folder's, if any
    const cot_server_options *server; // of each, but for ports
} cli_mock_settings;

/* Serves until a signal ends it, or no worker is left. Returns a CLI_EXIT_ value, after a line on stderr where that is not 0. */
int cli_serve_mock(const cli_mock_settings *settings);

#endif
