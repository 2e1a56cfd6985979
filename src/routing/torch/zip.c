/* An archive ends with a directory of its members and a record that says where the directory lies (APPNOTE.TXT 4.3).
 * Where a number does not fit its field, the field is all ones and the number stands in an extra field of id 1 ("zip64").
 */
#include "routing/torch/zip.h"

#include "base/error.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum {
    END_BYTES = 22,
    END64_LOCATOR_BYTES = 20,
    END64_BYTES = 56,
    ENTRY_BYTES = 46,
    LOCAL_BYTES = 30,
    MAX_COMMENT = 65535,
};

static uint64_t little(const uint8_t *at, int bytes)
{
    uint64_t n = 0;
    for (int i = bytes; i-- > 0;) n = n << 8 | at[i];
    return n;
}

static cot_status broken(const char *path, const char *what, cot_error *error)
{
    return cot_fail(error, COT_MALFORMED, "'%s' is a broken zip archive: %s", path, what);
}

/* Where the directory lies and how many members it lists. */
static cot_status find_directory(const uint8_t *data, size_t bytes, uint64_t *offset, uint64_t *size,
                                 uint64_t *count, const char *path, cot_error *error)
{
    if (bytes < END_BYTES) return broken(path, "it is too short", error);
    size_t at = bytes - END_BYTES, first = at > MAX_COMMENT ? at - MAX_COMMENT : 0;
    while (memcmp(data + at, "PK\5\6", 4) != 0) {
        if (at-- == first) return broken(path, "it has no directory", error);
    }
    const uint8_t *end = data + at;
    bool volumes = little(end + 4, 2) || little(end + 6, 2);
    *count = little(end + 10, 2);
    *size = little(end + 12, 4);
    *offset = little(end + 16, 4);
    if (*count == 0xffff || *size == 0xffffffff || *offset == 0xffffffff) {
        if (at < END64_LOCATOR_BYTES || memcmp(end - END64_LOCATOR_BYTES, "PK\6\7", 4) != 0)
            return broken(path, "its 64-bit directory is not to be found", error);
        uint64_t end64 = little(end - END64_LOCATOR_BYTES + 8, 8);
        if (end64 > at || at - end64 < END64_BYTES || memcmp(data + end64, "PK\6\6", 4) != 0)
            return broken(path, "its 64-bit directory is not to be found", error);
        volumes = little(data + end64 + 16, 4) || little(data + end64 + 20, 4);
        *count = little(data + end64 + 32, 8);
        *size = little(data + end64 + 40, 8);
        *offset = little(data + end64 + 48, 8);
    }
    if (volumes) return cot_fail(error, COT_UNSUPPORTED, "'%s' is a zip archive in several volumes", path);
    if (*offset > bytes || *size > bytes - *offset) return broken(path, "its directory lies outside", error);
    if (*count > *size / ENTRY_BYTES) return broken(path, "its directory is too short", error);
    return COT_OK;
}

/* Reads the numbers that stand in the zip64 extra field, in this order, where the entry's own field is all ones. */
static bool read_zip64(const uint8_t *extra, size_t extra_bytes, uint64_t *unpacked, uint64_t *packed,
                       uint64_t *offset)
{
    uint64_t *wanted[] = {unpacked, packed, offset};
    bool any = false;
    for (int i = 0; i < 3; i++) any |= *wanted[i] == 0xffffffff;
    while (any && extra_bytes >= 4) {
        size_t field = little(extra + 2, 2);
        if (field > extra_bytes - 4) return false;
        if (little(extra, 2) == 1) {
            const uint8_t *at = extra + 4, *end = at + field;
            for (int i = 0; i < 3; i++) {
                if (*wanted[i] != 0xffffffff) continue;
                if (end - at < 8) return false;
                *wanted[i] = little(at, 8);
                at += 8;
            }
            return true;
        }
        extra += 4 + field;
        extra_bytes -= 4 + field;
    }
    return !any;
}

/* One entry of the directory at `entry` [room]; `*used` becomes its length. */
static cot_status read_entry(cot_zip_member *member, const uint8_t *entry, size_t room, size_t *used,
                             const uint8_t *data, size_t bytes, const char *path, cot_error *error)
{
    if (room < ENTRY_BYTES || memcmp(entry, "PK\1\2", 4) != 0)
        return broken(path, "its directory is garbled", error);
    size_t name = little(entry + 28, 2), extra = little(entry + 30, 2), comment = little(entry + 32, 2);
    uint64_t packed = little(entry + 20, 4), unpacked = little(entry + 24, 4), offset = little(entry + 42, 4);
    *used = ENTRY_BYTES + name + extra + comment;
    if (*used > room) return broken(path, "its directory is garbled", error);
    member->name = (const char *)entry + ENTRY_BYTES;
    member->name_bytes = name;
    int shown = name < 60 ? (int)name : 60;
    if (little(entry + 8, 2) & 1 || little(entry + 10, 2))
        return cot_fail(error, COT_UNSUPPORTED,
                        "'%s': member '%.*s' is compressed or encrypted, expected stored", path, shown,
                        member->name);
    if (!read_zip64(entry + ENTRY_BYTES + name, extra, &unpacked, &packed, &offset) || packed != unpacked)
        return broken(path, "its directory is garbled", error);
    if (offset > bytes || bytes - offset < LOCAL_BYTES || memcmp(data + offset, "PK\3\4", 4) != 0)
        return broken(path, "a member lies outside", error);
    // the local header repeats the name; only the lengths that stand before the data matter
    size_t before = LOCAL_BYTES + little(data + offset + 26, 2) + little(data + offset + 28, 2);
    if (before > bytes - offset || packed > bytes - offset - before)
        return broken(path, "a member lies outside", error);
    member->data = data + offset + before;
    member->bytes = packed;
    return COT_OK;
}

cot_status cot_zip_open(cot_zip *zip, const uint8_t *data, size_t bytes, const char *path, cot_error *error)
{
    uint64_t offset = 0, size = 0, count = 0;
    *zip = (cot_zip){0};
    cot_status status = find_directory(data, bytes, &offset, &size, &count, path, error);
    if (status != COT_OK) return status;
    zip->members = calloc(count ? count : 1, sizeof *zip->members);
    if (!zip->members) return cot_fail(error, COT_OUT_OF_MEMORY, "cannot read '%s': out of memory", path);
    for (size_t at = 0, used = 0; status == COT_OK && zip->count < count; at += used)
        status = read_entry(&zip->members[zip->count++], data + offset + at, size - at, &used, data, bytes,
                            path, error);
    if (status != COT_OK) cot_zip_close(zip);
    return status;
}

void cot_zip_close(cot_zip *zip)
{
    free(zip->members);
    *zip = (cot_zip){0};
}

const cot_zip_member *cot_zip_find(const cot_zip *zip, const char *folder, size_t folder_bytes,
                                   const char *name, size_t name_bytes)
{
    for (size_t i = 0; i < zip->count; i++) {
        const cot_zip_member *m = &zip->members[i];
        if (m->name_bytes == folder_bytes + name_bytes && !memcmp(m->name, folder, folder_bytes) &&
            !memcmp(m->name + folder_bytes, name, name_bytes))
            return m;
    }
    return NULL;
}
