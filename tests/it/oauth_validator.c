/*
 * A validator of OAuth tokens for Postgres 18: a token counts if it is what the file VALID holds, and then says that its bearer is
 * whoever it claims to be. What a server's headers would declare is declared here, since a server from a package has none:
 * PostgreSQL manual, chapter 50 "OAuth Validator Modules", and section 36.10.1 "Dynamic Loading" for the magic block.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef struct {
    int version, function_arguments, index_keys, name_length, float8_by_value;
    char extra[32];
} Abi;

typedef struct {
    int length;
    Abi abi;
    const char *name, *version;
} Magic;

typedef struct {
    int server_version;
    void *data;
} State;

typedef struct {
    bool authorized;
    char *bearer;
} Result;

typedef struct {
    uint32_t magic;
    void (*startup)(State *);
    void (*shutdown)(State *);
    bool (*validate)(const State *, const char *, const char *, Result *);
} Callbacks;

extern char *pstrdup(const char *);

const Magic *Pg_magic_func(void)
{
    static const Magic magic = {sizeof(Magic), {1800, 100, 32, 64, 1, "PostgreSQL"}, NULL, NULL};
    return &magic;
}

static bool validate(const State *state, const char *token, const char *role, Result *result)
{
    char valid[256] = {0};
    FILE *file = fopen(VALID, "r");
    (void)state;
    if (file == NULL)
        return false;
    if (fread(valid, 1, sizeof valid - 1, file) > 0 && strcmp(token, valid) == 0) {
        result->authorized = true;
        result->bearer = pstrdup(role);
    }
    fclose(file);
    return true;
}

const Callbacks *_PG_oauth_validator_module_init(void)
{
    static const Callbacks callbacks = {0x20250220, NULL, NULL, validate};
    return &callbacks;
}
