/* Continues a prompt with a model over four ranks, streaming the text. Uses the installed package alone:
 *     cc -std=c17 generate.c $(pkg-config --cflags --libs coterie) -o generate
 *     ./generate models/tiny "Once upon a time" */
#include <coterie/coterie.h>
#include <stdio.h>
#include <stdlib.h>

struct printer {
    cot_text_stream *stream;
    cot_error error;
};

static bool print_token(void *context, uint64_t request, int32_t token)
{
    struct printer *printer = context;
    const char *piece;
    size_t bytes;
    bool stopped;
    (void)request; // there is only one
    if (cot_text_stream_push(printer->stream, token, &piece, &bytes, &stopped, &printer->error) != COT_OK)
        return false;
    fwrite(piece, 1, bytes, stdout);
    fflush(stdout);
    return !stopped;
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: generate MODEL PROMPT\n");
        return 2;
    }
    const char *stops[] = {"\n\n"}, *piece;
    struct printer printer = {0};
    cot_tokenizer *tokenizer = NULL;
    cot_engine *engine = NULL;
    int32_t *ids = NULL;
    size_t count = 0, bytes = 0;
    const char *prompt = argv[2];
    while (prompt[bytes]) bytes++;

    cot_text_options text;
    cot_text_options_init(&text);
    text.stops = stops;
    text.stop_count = 1;
    cot_engine_options options;
    cot_engine_options_init(&options);
    options.group.ranks = 4;

    cot_status status = cot_tokenizer_open(&tokenizer, argv[1], &printer.error);
    if (status == COT_OK)
        status = cot_tokenizer_encode(tokenizer, &ids, &count, prompt, bytes, true, &printer.error);
    if (status == COT_OK) status = cot_text_stream_open(&printer.stream, tokenizer, &text, &printer.error);
    if (status == COT_OK) status = cot_engine_open(&engine, argv[1], &options, NULL, &printer.error);
    if (status == COT_OK) {
        cot_request request;
        cot_events events = {.context = &printer, .on_token = print_token};
        cot_request_init(&request);
        request.prompt = ids;
        request.prompt_tokens = (int64_t)count;
        request.sampling.max_tokens = 60;
        status = cot_engine_run(engine, &request, 1, &events, NULL, &printer.error);
    }
    if (status == COT_OK) status = cot_text_stream_finish(printer.stream, &piece, &bytes, &printer.error);
    if (status == COT_OK)
        printf("%.*s\n", (int)bytes, piece);
    else
        fprintf(stderr, "generate: %s\n", printer.error.message);

    cot_engine_close(engine);
    cot_text_stream_close(printer.stream);
    free(ids);
    cot_tokenizer_close(tokenizer);
    return status == COT_OK ? 0 : 1;
}
