/* A simulated CANN: ptoas, bisheng, ccec, ld.lld and llvm-objcopy in one program.
 *
 * TEST FIXTURE ONLY. It compiles nothing. It reads what the real tools would read, and writes small
 * ELF files whose section `.sim.depends` names everything that the run depended on, so that a test
 * sees a wrong cache hit in the bytes. What it does is chosen by the name it is run under.
 *
 * Three texts are baked in, since a test's tools must get nothing through the environment: the run
 * log, the knobs directory and an identity. They lie in marked buffers of a fixed length, so that one
 * build is turned into many tools by patching bytes (tools.py does), all of one size.
 *
 *   ptoas [--pto-arch=a3|a5] [--pto-level=level1|2|3] [--pto-backend=emitc|vpto] … IN|- -o OUT|-
 *       emitc: C++ text; vpto: runs $ASCEND_HOME_PATH's bisheng on it. `error!` in the text fails.
 *   bisheng, ccec: the clang driver. --cce-aicore-only (or an .asc to an .o without -c): a
 *       relocatable device image. Else a host object (-c) or library with `.aicore_binary`, if the
 *       language is asc or cce (-x, suffix). Includes, conditionals, -MD… and CPATH are honoured;
 *       `-E -v` prints the search list.
 *   ld.lld -m aicorelinux [options] IN.o … -o OUT: an executable device image.
 *   llvm-objcopy -O binary --only-section=NAME IN OUT
 *
 * ELF: System V ABI (gABI) chapters 4 and 5, 64-bit class. FNV-1a-64: draft-eastlake-fnv.
 * Nothing is freed: each run is short.
 */
#define _GNU_SOURCE
#include <ctype.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef SIM_LOG
#define SIM_LOG ""
#endif
#ifndef SIM_KNOBS
#define SIM_KNOBS ""
#endif
#ifndef SIM_IDENTITY
#define SIM_IDENTITY "A"
#endif

#define MARK_BYTES 16
#define BAKED_BYTES 1024
/* Volatile: the compiler must not fold what is patched after it has run. */
static volatile char baked_log[BAKED_BYTES] = "\001simcann-log---\001" SIM_LOG;
static volatile char baked_knobs[BAKED_BYTES] = "\001simcann-knobs-\001" SIM_KNOBS;
static volatile char baked_identity[BAKED_BYTES] = "\001simcann-ident-\001" SIM_IDENTITY;

#define AICORE 0x1029
#if defined(__x86_64__)
#define HOST_MACHINE EM_X86_64
#elif defined(__aarch64__)
#define HOST_MACHINE EM_AARCH64
#else
#error "simcann knows x86-64 and aarch64"
#endif

#define FOREVER_S 300 /* "for ever" ends by itself, lest a failed test leave processes behind */
#define HOLD_STEP_MS 5
#define KERNEL_BYTES 64
#define HOST_CODE_BYTES 8
#define MAX_DEPTH 64

extern char **environ;
static const char *tool = "simcann";
static char exe_dir[PATH_MAX];

/* ---- texts ---------------------------------------------------------------------------------- */

struct buf {
    char *p; /* always followed by a NUL */
    size_t n, cap;
};

struct list {
    char **v;
    size_t n;
};

static void die(int code, const char *format, ...) __attribute__((noreturn, format(printf, 2, 3)));

static void die(int code, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    exit(code);
}

static void *grow(void *old, size_t bytes) {
    void *new = realloc(old, bytes);
    if (!new)
        die(70, "%s: out of memory", tool);
    return new;
}

static void add(struct buf *b, const void *data, size_t n) {
    if (b->n + n + 1 > b->cap) {
        b->cap = (b->n + n + 1) * 2;
        b->p = grow(b->p, b->cap);
    }
    if (n)
        memcpy(b->p + b->n, data, n);
    b->n += n;
    b->p[b->n] = 0;
}

static void add_zeros(struct buf *b, size_t n) {
    while (n--)
        add(b, "", 1);
}

static void addf(struct buf *b, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void addf(struct buf *b, const char *format, ...) {
    va_list args;
    char *text;
    va_start(args, format);
    int n = vasprintf(&text, format, args);
    va_end(args);
    if (n < 0)
        die(70, "%s: out of memory", tool);
    add(b, text, (size_t)n);
    free(text);
}

static const char *text_of(struct buf *b) {
    if (!b->p)
        add(b, "", 0);
    return b->p;
}

static char *joined(const char *format, ...) __attribute__((format(printf, 1, 2)));

static char *joined(const char *format, ...) {
    va_list args;
    char *text;
    va_start(args, format);
    if (vasprintf(&text, format, args) < 0)
        die(70, "%s: out of memory", tool);
    va_end(args);
    return text;
}

static void push(struct list *l, const char *text) {
    l->v = grow(l->v, (l->n + 1) * sizeof *l->v);
    l->v[l->n++] = joined("%s", text);
}

static int holds(const struct list *l, const char *text) {
    for (size_t i = 0; i < l->n; i++)
        if (!strcmp(l->v[i], text))
            return 1;
    return 0;
}

static void push_new(struct list *l, const char *text) {
    if (!holds(l, text))
        push(l, text);
}

static int starts(const char *text, const char *prefix) {
    return !strncmp(text, prefix, strlen(prefix));
}

static int ends(const char *text, const char *suffix) {
    size_t n = strlen(text), m = strlen(suffix);
    return n >= m && !strcmp(text + n - m, suffix);
}

static const char *base_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static char *dir_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return joined("%.*s", slash ? (int)(slash - path) : 0, path);
}

static uint64_t fnv(const void *data, size_t n) {
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t i = 0; i < n; i++)
        hash = (hash ^ ((const unsigned char *)data)[i]) * 0x100000001b3u;
    return hash;
}

static int is_name(int c) {
    return isalnum(c) || c == '_';
}

/* ---- files ---------------------------------------------------------------------------------- */

static int read_fd(int fd, struct buf *into) {
    char chunk[65536];
    ssize_t n;
    while ((n = read(fd, chunk, sizeof chunk)) > 0)
        add(into, chunk, (size_t)n);
    text_of(into);
    return n == 0;
}

static int read_file(const char *path, struct buf *into) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    int good = read_fd(fd, into);
    close(fd);
    return good;
}

static int is_file(const char *path) {
    struct stat st;
    return !stat(path, &st) && !S_ISDIR(st.st_mode);
}

static int is_dir(const char *path) {
    struct stat st;
    return !stat(path, &st) && S_ISDIR(st.st_mode);
}

static int write_all(int fd, const char *data, size_t n) {
    while (n) {
        ssize_t did = write(fd, data, n);
        if (did < 0)
            return 0;
        data += did;
        n -= (size_t)did;
    }
    return 1;
}

static void write_file(const char *path, const struct buf *data, mode_t mode) {
    int fd = !strcmp(path, "-") ? 1 : open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode);
    if (fd < 0 || !write_all(fd, data->p, data->n))
        die(1, "%s: error: unable to open output file '%s': '%s'", tool, path, strerror(errno));
    if (fd != 1)
        close(fd);
}

/* ---- what is baked in, knobs, the run log ---------------------------------------------------- */

static char *baked(volatile char *field) {
    char *copy = grow(NULL, BAKED_BYTES);
    size_t i = 0;
    while (MARK_BYTES + i < BAKED_BYTES - 1 && field[MARK_BYTES + i]) {
        copy[i] = field[MARK_BYTES + i];
        i++;
    }
    copy[i] = 0;
    return copy;
}

/* The knob's text without its last line end, or NULL. */
static const char *knob(const char *name) {
    const char *owners[] = {tool, "all"};
    char *place = baked(baked_knobs);
    for (size_t i = 0; *place && i < 2; i++) {
        struct buf text = {0};
        if (read_file(joined("%s/%s.%s", place, owners[i], name), &text)) {
            if (text.n && text.p[text.n - 1] == '\n')
                text.p[--text.n] = 0;
            return text.p;
        }
    }
    return NULL;
}

static long knob_number(const char *name, long otherwise) {
    const char *text = knob(name);
    return text && *text ? strtol(text, NULL, 0) : otherwise;
}

static void add_json(struct buf *b, const char *text) {
    add(b, "\"", 1);
    for (; *text; text++) {
        if (*text == '"' || *text == '\\')
            addf(b, "\\%c", *text);
        else if ((unsigned char)*text < 0x20)
            addf(b, "\\u%04x", *text);
        else
            add(b, text, 1);
    }
    add(b, "\"", 1);
}

static void add_json_list(struct buf *b, char **items) {
    add(b, "[", 1);
    for (char **item = items; *item; item++) {
        if (item != items)
            add(b, ",", 1);
        add_json(b, *item);
    }
    add(b, "]", 1);
}

static int by_text(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* One line, one write: concurrent runs never mix. */
static void log_run(const char *name, char **argv) {
    char *path = baked(baked_log);
    if (!*path)
        return;
    size_t count = 0;
    while (environ[count])
        count++;
    char **sorted = grow(NULL, (count + 1) * sizeof *sorted);
    memcpy(sorted, environ, (count + 1) * sizeof *sorted);
    qsort(sorted, count, sizeof *sorted, by_text);
    char cwd[PATH_MAX] = "";
    if (!getcwd(cwd, sizeof cwd))
        cwd[0] = 0;
    struct buf line = {0};
    addf(&line, "{\"tool\":");
    add_json(&line, name);
    addf(&line, ",\"argv\":");
    add_json_list(&line, argv);
    addf(&line, ",\"cwd\":");
    add_json(&line, cwd);
    addf(&line, ",\"env\":");
    add_json_list(&line, sorted);
    addf(&line, ",\"pid\":%ld}\n", (long)getpid());
    int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0 || write(fd, line.p, line.n) != (ssize_t)line.n)
        die(71, "simcann: cannot append to the run log %s: %s", path, strerror(errno));
    close(fd);
}

static void sleep_ms(long ms) {
    struct timespec left = {ms / 1000, ms % 1000 * 1000000};
    while (nanosleep(&left, &left) && errno == EINTR)
        continue;
}

static void leave_child(const char *how, char **argv) {
    int logged[2];
    char end;
    fflush(NULL);
    if (pipe(logged))
        die(71, "simcann: cannot make a pipe: %s", strerror(errno));
    pid_t pid = fork();
    if (pid < 0)
        die(71, "simcann: cannot fork: %s", strerror(errno));
    close(logged[pid ? 1 : 0]);
    if (pid) {
        /* Goes on when the child has logged itself, lest it is ended with its parent before. */
        while (read(logged[0], &end, 1) < 0 && errno == EINTR)
            continue;
        close(logged[0]);
        return;
    }
    if (!strcmp(how, "setsid"))
        setsid();
    log_run(joined("%s:child", tool), argv);
    close(logged[1]);
    sleep_ms(FOREVER_S * 1000L);
    _exit(0);
}

static void print_much(long bytes) {
    for (long i = 0; i < bytes; i++)
        fputc(i % 64 == 63 || i == bytes - 1 ? '\n' : '.', stderr);
}

/* Knobs that act before a compile, link or extraction does its work. */
static void obey_knobs(char **argv) {
    const char *child = knob("child");
    if (child)
        leave_child(child, argv);
    sleep_ms(knob_number("sleep-ms", 0));
    for (long ms = 0; knob("hold") && ms < FOREVER_S * 1000L; ms += HOLD_STEP_MS)
        sleep_ms(HOLD_STEP_MS);
    if (knob("hang"))
        sleep_ms(FOREVER_S * 1000L);
    print_much(knob_number("stderr-bytes", 0));
    if (knob("exit"))
        die((int)knob_number("exit", 1), "%s: error: told to fail by a knob", tool);
    if (knob("nothing"))
        exit(0);
}

static void refuse_if_contains(const char *path, const struct buf *text) {
    const char *needle = knob("fail-if-contains");
    if (needle && *needle && memmem(text->p, text->n, needle, strlen(needle)))
        die(1, "%s:1:1: error: the input contains '%s'", path, needle);
}

static int say_version(const char *banner) {
    sleep_ms(knob_number("version-sleep-ms", 0));
    fputs(banner, knob("version-to-stderr") ? stderr : stdout);
    return (int)knob_number("version-exit", 0);
}

static int is_damage(const char *kind) {
    const char *wanted = knob("damage");
    return wanted && !strcmp(wanted, kind);
}

/* Values of the variables that the knob `env-names` names, and the knob `nonce`. */
static void add_surroundings(struct buf *depends) {
    const char *names = knob("env-names"), *nonce = knob("nonce");
    char *rest = joined("%s", names ? names : "");
    for (char *name = strtok(rest, " \n\t,"); name; name = strtok(NULL, " \n\t,")) {
        const char *value = getenv(name);
        if (value)
            addf(depends, "env=%s=%s\n", name, value);
        else
            addf(depends, "env=%s unset\n", name);
    }
    if (nonce)
        addf(depends, "nonce=%s\n", nonce);
}

/* ---- writing ELF ---------------------------------------------------------------------------- */

struct section {
    const char *name;
    Elf64_Shdr h;
    struct buf data;
};

struct elf {
    Elf64_Ehdr h;
    Elf64_Phdr segments[4];
    size_t segment_count;
    struct section sections[16];
    size_t count; /* section 0 is the empty one */
};

static struct elf new_elf(int type, int machine, uint32_t flags) {
    struct elf e;
    memset(&e, 0, sizeof e);
    memcpy(e.h.e_ident, ELFMAG, SELFMAG);
    e.h.e_ident[EI_CLASS] = ELFCLASS64;
    e.h.e_ident[EI_DATA] = ELFDATA2LSB;
    e.h.e_ident[EI_VERSION] = EV_CURRENT;
    e.h.e_type = (Elf64_Half)type;
    e.h.e_machine = (Elf64_Half)machine;
    e.h.e_version = EV_CURRENT;
    e.h.e_flags = flags;
    e.h.e_ehsize = sizeof(Elf64_Ehdr);
    e.h.e_shentsize = sizeof(Elf64_Shdr);
    e.sections[0].name = "";
    e.count = 1;
    return e;
}

static struct section *new_section(struct elf *e, const char *name, uint32_t type, uint64_t flags,
                                   uint64_t align) {
    struct section *s = &e->sections[e->count++];
    s->name = name;
    s->h.sh_type = type;
    s->h.sh_flags = flags;
    s->h.sh_addralign = align;
    return s;
}

static void add_name_table(struct elf *e) {
    struct section *names = new_section(e, ".shstrtab", SHT_STRTAB, 0, 1);
    e->h.e_shstrndx = (Elf64_Half)(e->count - 1);
    for (size_t i = 0; i < e->count; i++) {
        e->sections[i].h.sh_name = (Elf64_Word)names->data.n;
        add(&names->data, e->sections[i].name, strlen(e->sections[i].name) + 1);
    }
}

static uint64_t aligned(uint64_t offset, uint64_t align) {
    return align > 1 ? (offset + align - 1) / align * align : offset;
}

/* Gives each section its place; sizes must be final. */
static void lay_out(struct elf *e) {
    uint64_t at = sizeof(Elf64_Ehdr) + e->segment_count * sizeof(Elf64_Phdr);
    for (size_t i = 1; i < e->count; i++) {
        struct section *s = &e->sections[i];
        at = aligned(at, s->h.sh_addralign);
        s->h.sh_offset = at;
        s->h.sh_size = s->data.n;
        at += s->data.n;
    }
    e->h.e_shoff = aligned(at, 8);
    e->h.e_shnum = (Elf64_Half)e->count;
    if (e->segment_count) {
        e->h.e_phoff = sizeof(Elf64_Ehdr);
        e->h.e_phentsize = sizeof(Elf64_Phdr);
        e->h.e_phnum = (Elf64_Half)e->segment_count;
    }
}

static struct buf written(const struct elf *e) {
    struct buf out = {0};
    add(&out, &e->h, sizeof e->h);
    add(&out, e->segments, e->segment_count * sizeof(Elf64_Phdr));
    for (size_t i = 1; i < e->count; i++) {
        add_zeros(&out, e->sections[i].h.sh_offset - out.n);
        add(&out, e->sections[i].data.p, e->sections[i].data.n);
    }
    add_zeros(&out, e->h.e_shoff - out.n);
    for (size_t i = 0; i < e->count; i++)
        add(&out, &e->sections[i].h, sizeof(Elf64_Shdr));
    return out;
}

/* A symbol table and its names for functions of `step` bytes each in section 1. */
static void fill_symbols(struct section *table, struct buf *names, const struct list *functions,
                         int section, uint64_t base, uint64_t step) {
    Elf64_Sym none;
    memset(&none, 0, sizeof none);
    table->data.n = 0;
    names->n = 0;
    add(&table->data, &none, sizeof none);
    add(names, "", 1);
    for (size_t i = 0; i < functions->n; i++) {
        Elf64_Sym symbol = none;
        symbol.st_name = (Elf64_Word)names->n;
        symbol.st_info = ELF64_ST_INFO(STB_GLOBAL, STT_FUNC);
        symbol.st_shndx = (Elf64_Half)section;
        symbol.st_value = base + i * step;
        symbol.st_size = step;
        add(&table->data, &symbol, sizeof symbol);
        add(names, functions->v[i], strlen(functions->v[i]) + 1);
    }
}

static struct section *new_symbols(struct elf *e, const char *name, const char *names, int type,
                                   uint64_t flags, const struct list *functions, int section,
                                   uint64_t step) {
    struct section *table = new_section(e, name, (uint32_t)type, flags, 8);
    struct section *strings = new_section(e, names, SHT_STRTAB, flags, 1);
    table->h.sh_entsize = sizeof(Elf64_Sym);
    table->h.sh_link = (Elf64_Word)(e->count - 1);
    table->h.sh_info = 1;
    fill_symbols(table, &strings->data, functions, section, 0, step);
    return table;
}

static void add_depends(struct elf *e, struct buf *depends) {
    struct section *s = new_section(e, ".sim.depends", SHT_PROGBITS, 0, 1);
    add(&s->data, text_of(depends), depends->n);
}

static struct buf device_image(int type, uint32_t flags, const struct list *kernels,
                               const struct buf *content, struct buf *depends) {
    struct elf e = new_elf(type, AICORE, flags);
    struct section *code = new_section(&e, ".text", SHT_PROGBITS, SHF_ALLOC | SHF_EXECINSTR, 16);
    uint64_t seed = fnv(text_of(depends), depends->n);
    for (size_t i = 0; i < kernels->n * KERNEL_BYTES / sizeof seed; i++) {
        add(&code->data, &seed, sizeof seed);
        seed = fnv(&seed, sizeof seed);
    }
    struct section *data = new_section(&e, ".data", SHT_PROGBITS, SHF_ALLOC | SHF_WRITE, 16);
    add(&data->data, content->p, content->n);
    add_depends(&e, depends);
    new_symbols(&e, ".symtab", ".strtab", SHT_SYMTAB, 0, kernels, 1, KERNEL_BYTES);
    add_name_table(&e);
    e.segment_count = type == ET_EXEC ? 1 : 0;
    lay_out(&e);
    if (type == ET_EXEC) {
        uint64_t size = data->h.sh_offset + data->h.sh_size - code->h.sh_offset;
        e.segments[0] = (Elf64_Phdr){PT_LOAD, PF_R | PF_W | PF_X, code->h.sh_offset, 0, 0, size,
                                     size, 16};
        data->h.sh_addr = data->h.sh_offset - code->h.sh_offset;
    }
    return written(&e);
}

/* What the host form of an output holds. */
struct host {
    struct buf images; /* complete device images, back to back */
    struct buf record;
    struct buf depends;
    struct list functions;
    int is_device; /* false for plain C and C++ */
};

/* A function that returns 16 bits of a hash: enough to see which build was loaded. */
static void add_host_code(struct buf *code, uint64_t hash) {
    uint32_t value = (uint32_t)(hash & 0xffff);
#if defined(__x86_64__)
    unsigned char bytes[HOST_CODE_BYTES] = {0xb8, 0, 0, 0, 0, 0xc3, 0x90, 0x90};
    memcpy(bytes + 1, &value, sizeof value);
    add(code, bytes, sizeof bytes);
#else
    uint32_t words[] = {0x52800000u | value << 5, 0xd65f03c0u};
    add(code, words, sizeof words);
#endif
}

static void add_host_contents(struct elf *e, struct host *host) {
    struct section *code = new_section(e, ".text", SHT_PROGBITS, SHF_ALLOC | SHF_EXECINSTR, 16);
    struct buf all = {0};
    add(&all, text_of(&host->depends), host->depends.n);
    add(&all, text_of(&host->images), host->images.n);
    for (size_t i = 0; i < host->functions.n; i++)
        add_host_code(&code->data, fnv(all.p, all.n));
    if (!host->is_device)
        return;
    const char *name = is_damage("no-aicore") ? ".aicore_none" : ".aicore_binary";
    struct section *images = new_section(e, name, SHT_PROGBITS, SHF_ALLOC, 16);
    images->data = host->images;
    struct section *record = new_section(e, ".aicoreBinRec", SHT_PROGBITS, SHF_ALLOC, 8);
    record->data = host->record;
}

static struct buf host_object(struct host *host) {
    struct elf e = new_elf(ET_REL, HOST_MACHINE, 0);
    add_host_contents(&e, host);
    add_depends(&e, &host->depends);
    new_symbols(&e, ".symtab", ".strtab", SHT_SYMTAB, 0, &host->functions, 1, HOST_CODE_BYTES);
    add_name_table(&e);
    lay_out(&e);
    return written(&e);
}

/* One bucket whose chain visits every symbol: valid, and needs no hash function. */
static void fill_hash(struct buf *hash, size_t symbols) {
    uint32_t head[] = {1, (uint32_t)symbols, symbols > 1 ? 1 : 0};
    add(hash, head, sizeof head);
    for (uint32_t i = 0; i < symbols; i++) {
        uint32_t next = i && i + 1 < symbols ? i + 1 : 0;
        add(hash, &next, sizeof next);
    }
}

#define DYNAMIC_BIAS 0x10000 /* the writable segment's addresses: offset + the largest page */

static void fill_dynamic(struct elf *e, struct section *dynamic, size_t symbols, size_t strings,
                         size_t hash) {
    Elf64_Dyn entries[] = {
        {DT_HASH, {e->sections[hash].h.sh_offset}},
        {DT_STRTAB, {e->sections[strings].h.sh_offset}},
        {DT_SYMTAB, {e->sections[symbols].h.sh_offset}},
        {DT_STRSZ, {e->sections[strings].h.sh_size}},
        {DT_SYMENT, {sizeof(Elf64_Sym)}},
        {DT_NULL, {0}},
    };
    dynamic->data.n = 0;
    add(&dynamic->data, entries, sizeof entries);
}

static struct buf host_library(struct host *host) {
    struct elf e = new_elf(ET_DYN, HOST_MACHINE, 0);
    add_host_contents(&e, host);
    size_t symbols = e.count, strings = e.count + 1, hash = e.count + 2;
    struct section *table = new_symbols(&e, ".dynsym", ".dynstr", SHT_DYNSYM, SHF_ALLOC,
                                        &host->functions, 1, HOST_CODE_BYTES);
    struct section *buckets = new_section(&e, ".hash", SHT_HASH, SHF_ALLOC, 8);
    buckets->h.sh_link = (Elf64_Word)symbols;
    buckets->h.sh_entsize = 4;
    fill_hash(&buckets->data, host->functions.n + 1);
    size_t first_writable = e.count;
    struct section *dynamic =
        new_section(&e, ".dynamic", SHT_DYNAMIC, SHF_ALLOC | SHF_WRITE, 16);
    dynamic->h.sh_link = (Elf64_Word)strings;
    dynamic->h.sh_entsize = sizeof(Elf64_Dyn);
    fill_dynamic(&e, dynamic, symbols, strings, hash);
    add_depends(&e, &host->depends);
    add_name_table(&e);
    e.segment_count = 4;
    lay_out(&e);
    for (size_t i = 1; i <= first_writable; i++)
        e.sections[i].h.sh_addr =
            e.sections[i].h.sh_offset + (i == first_writable ? DYNAMIC_BIAS : 0);
    fill_symbols(table, &e.sections[strings].data, &host->functions, 1, e.sections[1].h.sh_addr,
                 HOST_CODE_BYTES);
    fill_dynamic(&e, dynamic, symbols, strings, hash);
    uint64_t end = buckets->h.sh_offset + buckets->h.sh_size, at = dynamic->h.sh_offset;
    uint64_t size = dynamic->h.sh_size, address = dynamic->h.sh_addr;
    e.segments[0] = (Elf64_Phdr){PT_LOAD, PF_R | PF_X, 0, 0, 0, end, end, 0x10000};
    e.segments[1] = (Elf64_Phdr){PT_LOAD, PF_R | PF_W, at, address, address, size, size, 0x10000};
    e.segments[2] = (Elf64_Phdr){PT_DYNAMIC, PF_R | PF_W, at, address, address, size, size, 8};
    e.segments[3] = (Elf64_Phdr){PT_GNU_STACK, PF_R | PF_W, 0, 0, 0, 0, 0, 16};
    return written(&e);
}

/* ---- reading ELF ---------------------------------------------------------------------------- */

static const Elf64_Ehdr *header_of(const struct buf *file) {
    const Elf64_Ehdr *h = (const void *)file->p;
    if (file->n < sizeof *h || memcmp(file->p, ELFMAG, SELFMAG))
        return NULL;
    if (h->e_shoff > file->n || (file->n - h->e_shoff) / sizeof(Elf64_Shdr) < h->e_shnum)
        return NULL;
    return h->e_shstrndx < h->e_shnum ? h : NULL;
}

static int section_at(const struct buf *file, size_t index, Elf64_Shdr *into) {
    const Elf64_Ehdr *h = header_of(file);
    if (!h || index >= h->e_shnum)
        return 0;
    memcpy(into, file->p + h->e_shoff + index * sizeof *into, sizeof *into);
    return into->sh_offset <= file->n && into->sh_size <= file->n - into->sh_offset;
}

static const char *name_in(const struct buf *file, const Elf64_Shdr *table, uint64_t offset) {
    const char *names = file->p + table->sh_offset;
    if (offset >= table->sh_size || !memchr(names + offset, 0, table->sh_size - offset))
        return "";
    return names + offset;
}

static size_t find_section(const struct buf *file, const char *name, Elf64_Shdr *into) {
    const Elf64_Ehdr *h = header_of(file);
    Elf64_Shdr names;
    if (!h || !section_at(file, h->e_shstrndx, &names))
        return 0;
    for (size_t i = 1; i < h->e_shnum; i++)
        if (section_at(file, i, into) && !strcmp(name_in(file, &names, into->sh_name), name))
            return i;
    return 0;
}

static struct buf content_of(const struct buf *file, const char *name) {
    struct buf out = {0};
    Elf64_Shdr s;
    if (find_section(file, name, &s))
        add(&out, file->p + s.sh_offset, s.sh_size);
    text_of(&out);
    return out;
}

static void add_functions_of(const struct buf *file, struct list *functions) {
    Elf64_Shdr table, strings;
    if (!find_section(file, ".symtab", &table) || !section_at(file, table.sh_link, &strings))
        return;
    for (uint64_t at = 0; at + sizeof(Elf64_Sym) <= table.sh_size; at += sizeof(Elf64_Sym)) {
        Elf64_Sym symbol;
        memcpy(&symbol, file->p + table.sh_offset + at, sizeof symbol);
        if (ELF64_ST_BIND(symbol.st_info) == STB_GLOBAL && symbol.st_shndx)
            push_new(functions, name_in(file, &strings, symbol.st_name));
    }
}

/* ---- damage --------------------------------------------------------------------------------- */

static void move_section_out(struct buf *out) {
    Elf64_Shdr s;
    size_t index = find_section(out, ".aicore_binary", &s);
    const Elf64_Ehdr *h = header_of(out);
    if (!h)
        return;
    uint64_t place = h->e_shoff + (index ? index : 1) * sizeof s;
    memcpy(&s, out->p + place, sizeof s);
    s.sh_offset = out->n + 1;
    memcpy(out->p + place, &s, sizeof s);
}

static void damage(struct buf *out) {
    if (is_damage("truncate"))
        out->n /= 2;
    else if (is_damage("empty"))
        out->n = 0;
    else if (is_damage("not-elf")) {
        out->n = 0;
        addf(out, "this is not an ELF file\n");
    } else if (is_damage("section-out-of-bounds"))
        move_section_out(out);
    else if (is_damage("wrong-machine") && header_of(out)) {
        Elf64_Half machine = header_of(out)->e_machine == AICORE ? HOST_MACHINE : AICORE;
        memcpy(out->p + offsetof(Elf64_Ehdr, e_machine), &machine, sizeof machine);
    }
}

static void deliver(const char *path, struct buf *out, mode_t mode) {
    damage(out);
    write_file(path, out, mode);
}

/* ---- ptoas ---------------------------------------------------------------------------------- */

struct ptoas {
    const char *input, *output, *arch, *level, *backend, *debug;
    int sync, no_layout, trace, print_ir;
};

static const char *one_of(const char *option, const char *value, const char *const *allowed) {
    for (; *allowed; allowed++)
        if (!strcmp(value, *allowed))
            return value;
    die(1, "ptoas: for the %s option: Cannot find option named '%s'!", option, value);
}

static struct ptoas ptoas_options(int argc, char **argv) {
    static const char *const arches[] = {"a3", "a5", NULL};
    static const char *const levels[] = {"level1", "level2", "level3", NULL};
    static const char *const backends[] = {"emitc", "vpto", NULL};
    struct ptoas o = {NULL, "-", "a3", "level2", "emitc", "0", 0, 0, 0, 0};
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i], *value = strchr(a, '=');
        value = value ? value + 1 : "";
        if (starts(a, "--pto-arch="))
            o.arch = one_of("--pto-arch", value, arches);
        else if (starts(a, "--pto-level="))
            o.level = one_of("--pto-level", value, levels);
        else if (starts(a, "--pto-backend="))
            o.backend = one_of("--pto-backend", value, backends);
        else if (starts(a, "--pto-insert-sync-debug="))
            o.debug = value;
        else if (!strcmp(a, "--enable-insert-sync"))
            o.sync = 1;
        else if (!strcmp(a, "--disable-infer-layout"))
            o.no_layout = 1;
        else if (!strcmp(a, "--emit-addptr-trace"))
            o.trace = 1;
        else if (!strcmp(a, "--mlir-print-ir-after-all"))
            o.print_ir = 1;
        else if (!strcmp(a, "-o") && i + 1 < argc)
            o.output = argv[++i];
        else if (*a == '-' && a[1])
            die(1, "ptoas: Unknown command line argument '%s'.  Try: 'ptoas --help'", a);
        else if (o.input)
            die(1, "ptoas: Too many positional arguments specified!");
        else
            o.input = a;
    }
    if (!o.input)
        o.input = "-";
    return o;
}

static void ptoas_check(const char *name, const struct buf *text) {
    refuse_if_contains(name, text);
    const char *at = memmem(text->p, text->n, "error!", 6);
    if (!at)
        return;
    int line = 1, column = 1;
    for (const char *c = text->p; c < at; c++) {
        column = *c == '\n' ? 1 : column + 1;
        line += *c == '\n';
    }
    die(1, "loc(\"%s\":%d:%d): error: the input asks for an error", name, line, column);
}

static void add_ptoas_depends(struct buf *out, const struct ptoas *o, const struct buf *text) {
    struct buf depends = {0};
    addf(&depends, "tool=ptoas identity=%s arch=%s level=%s backend=%s flags=[%s%s%s%s%s%s]",
         baked(baked_identity), o->arch, o->level, o->backend,
         o->sync ? "--enable-insert-sync " : "", o->no_layout ? "--disable-infer-layout " : "",
         o->trace ? "--emit-addptr-trace " : "", o->print_ir ? "--mlir-print-ir-after-all " : "",
         strcmp(o->debug, "0") ? "--pto-insert-sync-debug=" : "",
         strcmp(o->debug, "0") ? o->debug : "");
    addf(&depends, " input=%016llx\n", (unsigned long long)fnv(text->p, text->n));
    add_surroundings(&depends);
    char *rest = depends.p;
    for (char *line = strtok(rest, "\n"); line; line = strtok(NULL, "\n"))
        addf(out, "// sim-depends: %s\n", line);
}

static void add_kernels_of_pto(struct buf *out, const char *text) {
    for (const char *at = text; (at = strstr(at, "func.func")); at += 9) {
        const char *name = strpbrk(at, "@\n"), *end;
        if (!name || *name != '@')
            continue;
        for (end = ++name; is_name(*end); end++)
            continue;
        addf(out, "extern \"C\" __global__ __aicore__ void %.*s(void) {}\n", (int)(end - name),
             name);
    }
}

static struct buf emitted(const struct ptoas *o, struct buf *text) {
    struct buf out = {0};
    addf(&out, "// Emitted by a simulated ptoas: a test fixture, not a compiler.\n");
    add_ptoas_depends(&out, o, text);
    add_kernels_of_pto(&out, text->p);
    addf(&out, "// The input:\n// | ");
    for (size_t i = 0; i < text->n; i++) {
        add(&out, text->p + i, 1);
        if (text->p[i] == '\n' && i + 1 < text->n)
            addf(&out, "// | ");
    }
    addf(&out, "\n");
    long padding = knob_number("output-bytes", 0) - (long)out.n;
    for (long i = 0; i < padding; i++)
        addf(&out, i % 80 == 79 || i == padding - 1 ? "\n" : "/");
    return out;
}

static void ptoas_chatter(const struct ptoas *o) {
    for (int i = 0; i < 200; i++)
        fprintf(stderr, "[ptoas] pass %3d: memory plan of tile %3d is unchanged, go on\n", i, i * 7);
    if (o->print_ir)
        fprintf(stderr, "// -----// IR Dump After Everything //----- //\n");
}

static char *cann_abi(const char *root) {
    const char *places[] = {"version.info", "compiler/version.info"};
    for (size_t i = 0; i < 2; i++) {
        struct buf text = {0};
        if (!read_file(joined("%s/%s", root, places[i]), &text))
            continue;
        const char *at = strstr(text.p, "Version=");
        at = at ? at + 8 : "";
        return joined("%.*s", (int)strcspn(at, "\r\n "), at);
    }
    return joined("unknown");
}

static char *ptoas_bisheng(const char *root) {
    const char *places[] = {"bin/bisheng", "compiler/ccec_compiler/bin/bisheng"};
    for (size_t i = 0; root && i < 2; i++) {
        char *path = joined("%s/%s", root, places[i]);
        if (!access(path, X_OK))
            return path;
    }
    die(1, "ptoas: error: no bisheng below ASCEND_HOME_PATH (%s)", root ? root : "not set");
}

static int ptoas_fat_object(const struct ptoas *o, const struct buf *source) {
    const char *root = getenv("ASCEND_HOME_PATH"), *tmp = getenv("TMPDIR");
    char *bisheng = ptoas_bisheng(root);
    char *place = joined("%s/ptoas-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    if (!mkdtemp(place))
        die(1, "ptoas: error: no temporary directory: %s", strerror(errno));
    char *path = joined("%s/kernel.cpp", place);
    write_file(path, source, 0600);
    fflush(NULL);
    pid_t pid = fork();
    if (!pid) {
        execl(bisheng, bisheng, "-O2", "-fPIC", "-std=c++17", "-xcce",
              strcmp(o->arch, "a5") ? "--npu-arch=dav-2201" : "--npu-arch=dav-3510",
              joined("-DCANN_ABI=%s", cann_abi(root)), "-c", path, "-o", o->output, (char *)NULL);
        _exit(127);
    }
    int status = -1;
    if (pid > 0)
        waitpid(pid, &status, 0);
    unlink(path);
    rmdir(place);
    return status ? 1 : 0;
}

static int run_ptoas(int argc, char **argv) {
    if (argc == 2 && !strcmp(argv[1], "--version"))
        return say_version("ptoas 0.27\n");
    struct ptoas o = ptoas_options(argc, argv);
    obey_knobs(argv);
    struct buf text = {0};
    int is_stdin = !strcmp(o.input, "-");
    if (is_stdin ? !read_fd(0, &text) : !read_file(o.input, &text))
        die(1, "ptoas: error: cannot open input file '%s': %s", o.input, strerror(errno));
    ptoas_check(is_stdin ? "<stdin>" : o.input, &text);
    struct buf out = emitted(&o, &text);
    int result = 0;
    if (!strcmp(o.backend, "vpto"))
        result = ptoas_fat_object(&o, &out);
    else
        deliver(o.output, &out, 0644);
    if (!result)
        ptoas_chatter(&o);
    return result;
}

/* ---- bisheng: options ----------------------------------------------------------------------- */

struct input {
    const char *path, *language;
};

struct driver {
    struct list quote, angle, system, after; /* directories */
    struct list defines, undefines, forced;  /* operands of -D, -U, -include */
    struct list libraries, library_dirs;
    struct list counted; /* options that reach the output, in order */
    struct list maps;    /* old=new of -ffile-prefix-map and -fmacro-prefix-map */
    struct input inputs[64];
    size_t input_count;
    const char *output, *depfile, *arch, *link_depfile;
    struct list linked; /* files that the link opened */
    struct list targets; /* already quoted for make */
    int is_device_only, is_object, is_shared, is_search, is_preprocess, is_debug;
    int depends, no_system_depends, phony;
};

static struct buf make_quoted(const char *text) {
    struct buf out = {0};
    for (; *text; text++) {
        if (*text == ' ' || *text == '#' || *text == '\t')
            add(&out, "\\", 1);
        if (*text == '$')
            add(&out, "$", 1);
        add(&out, text, 1);
    }
    text_of(&out);
    return out;
}

static void driver_value(struct driver *d, const char *option, const char *value) {
    if (!strcmp(option, "-o"))
        d->output = value;
    else if (!strcmp(option, "-MF"))
        d->depfile = value;
    else if (!strcmp(option, "-MT"))
        push(&d->targets, value);
    else if (!strcmp(option, "-MQ"))
        push(&d->targets, make_quoted(value).p);
    else if (!strcmp(option, "-include"))
        push(&d->forced, value);
    else if (!strcmp(option, "-isystem"))
        push(&d->system, value);
    else if (!strcmp(option, "-iquote"))
        push(&d->quote, value);
    else if (!strcmp(option, "-idirafter"))
        push(&d->after, value);
    else if (!strcmp(option, "-I"))
        push(&d->angle, value);
    else if (!strcmp(option, "-L"))
        push(&d->library_dirs, value);
    else {
        if (!strcmp(option, "-D"))
            push(&d->defines, value);
        else if (!strcmp(option, "-U"))
            push(&d->undefines, value);
        else if (!strcmp(option, "-l"))
            push(&d->libraries, value);
        push(&d->counted, joined("%s%s%s", option, option[2] ? " " : "", value));
    }
}

/* Options with an operand, joined or separate; longer names first. */
static int driver_operand(struct driver *d, int argc, char **argv, int *i) {
    static const char *const names[] = {"-idirafter", "-isystem", "-include", "-iquote", "-Xlinker",
                                        "-mllvm",     "-Xclang",  "-MF",      "-MT",     "-MQ",
                                        "-D",         "-U",       "-I",       "-L",      "-l",
                                        "-o",         NULL};
    for (const char *const *name = names; *name; name++) {
        if (!starts(argv[*i], *name))
            continue;
        const char *value = argv[*i] + strlen(*name);
        int is_separate_only = (*name)[1] == 'X' || !strcmp(*name, "-mllvm");
        if (*value && is_separate_only)
            continue;
        if (!*value && ++*i >= argc)
            die(1, "bisheng: error: argument to '%s' is missing (expected 1 value)", *name);
        driver_value(d, *name, *value ? value : argv[*i]);
        return 1;
    }
    return 0;
}

static int driver_switch(struct driver *d, const char *a) {
    if (!strcmp(a, "-c"))
        d->is_object = 1;
    else if (!strcmp(a, "-shared") || !strcmp(a, "--shared"))
        d->is_shared = 1;
    else if (!strcmp(a, "-E"))
        d->is_preprocess = 1;
    else if (!strcmp(a, "-v"))
        d->is_search = 1;
    else if (!strcmp(a, "-MD"))
        d->depends = 1;
    else if (!strcmp(a, "-MMD"))
        d->depends = d->no_system_depends = 1;
    else if (!strcmp(a, "-MP"))
        d->phony = 1;
    else
        return 0;
    return 1;
}

static int driver_counted(struct driver *d, const char *a) {
    static const char *const prefixes[] = {"-O", "-std=", "-f", "-m", "-W", "-g", "--cce-", NULL};
    if (!strcmp(a, "-w") || !strcmp(a, "-pthread") || !strcmp(a, "-pipe")) {
        push(&d->counted, a);
        return 1;
    }
    if (starts(a, "--npu-arch=") || starts(a, "--cce-aicore-arch=")) {
        d->arch = strchr(a, '=') + 1;
        push(&d->counted, a);
        return 1;
    }
    if (starts(a, "-ffile-prefix-map=") || starts(a, "-fmacro-prefix-map=")) {
        push(&d->maps, strchr(a, '=') + 1);
        return 1;
    }
    if (starts(a, "-Wl,--dependency-file=")) {
        d->link_depfile = strchr(a, '=') + 1;
        return 1;
    }
    /* Its operand is a path that real compilers put into debug information alone. */
    if (starts(a, "-fdebug-prefix-map="))
        return 1;
    d->is_device_only |= !strcmp(a, "--cce-aicore-only");
    if (starts(a, "-g"))
        d->is_debug = strcmp(a, "-g0") != 0;
    for (const char *const *prefix = prefixes; *prefix; prefix++)
        if (starts(a, *prefix)) {
            push(&d->counted, a);
            return 1;
        }
    return 0;
}

static const char *language_of(const char *path) {
    static const char *const known[][2] = {{".asc", "asc"}, {".cce", "cce"}, {".o", "object"},
                                           {".c", "c"},     {NULL, NULL}};
    for (size_t i = 0; known[i][0]; i++)
        if (ends(path, known[i][0]))
            return known[i][1];
    return "c++";
}

static void driver_paths_of(struct list *dirs, const char *variable) {
    const char *value = getenv(variable);
    if (!value || !*value)
        return;
    char *rest = joined("%s", value), *dir;
    while ((dir = strsep(&rest, ":")))
        push(dirs, *dir ? dir : ".");
}

static void driver_system_dirs(struct driver *d) {
    char *parent = dir_name(exe_dir), *root = dir_name(dir_name(parent));
    driver_paths_of(&d->angle, "CPATH");
    driver_paths_of(&d->system, "CPLUS_INCLUDE_PATH");
    push(&d->system, joined("%s/lib/clang/15.0.5/include", parent));
    char *more[] = {joined("%s/include", parent), joined("%s/include", root)};
    for (size_t i = 0; i < 2; i++)
        if (is_dir(more[i]))
            push_new(&d->system, more[i]);
}

static void driver_input(struct driver *d, const char *path, const char *language) {
    if (d->input_count == sizeof d->inputs / sizeof *d->inputs)
        die(1, "%s: error: too many inputs", tool);
    if (strcmp(path, "-") && access(path, R_OK))
        die(1, "%s: error: no such file or directory: '%s'", tool, path);
    int is_object = !strcmp(language_of(path), "object");
    d->inputs[d->input_count++] =
        (struct input){path, language && !is_object ? language : language_of(path)};
}

static void driver_parse(struct driver *d, int argc, char **argv) {
    const char *language = NULL;
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i];
        if (!strcmp(a, "-x") && i + 1 < argc) {
            language = argv[++i];
            push(&d->counted, joined("-x%s", language));
        } else if (starts(a, "-x") && a[2]) {
            language = a + 2;
            push(&d->counted, a);
        } else if (*a != '-' || !a[1]) {
            driver_input(d, a, language);
        } else if (!driver_switch(d, a) && !driver_operand(d, argc, argv, &i) &&
                   !driver_counted(d, a)) {
            die(1, "%s: error: unknown argument: '%s'", tool, a);
        }
    }
    driver_system_dirs(d);
}

/* ---- bisheng: preprocessing ----------------------------------------------------------------- */

struct macro {
    const char *name, *value;
};

struct unit {
    const struct driver *d;
    struct macro *macros;
    size_t macro_count;
    struct list opened;    /* spelled as found, in order, each once */
    struct buf is_system;  /* one byte for each of opened */
    struct list once;      /* canonical paths with #pragma once */
    struct buf text;       /* the active text of everything */
    struct buf depends;    /* a line for each file, macro path and time */
    struct list paths_in;  /* spelled paths whose __FILE__ was used */
    int depth;
};

static struct macro *macro_of(struct unit *u, const char *name, size_t n) {
    for (size_t i = 0; i < u->macro_count; i++)
        if (u->macros[i].name && strlen(u->macros[i].name) == n &&
            !strncmp(u->macros[i].name, name, n))
            return &u->macros[i];
    return NULL;
}

static void undefine(struct unit *u, const char *name, size_t n) {
    struct macro *old = macro_of(u, name, n);
    if (old)
        old->name = NULL;
}

static void define(struct unit *u, const char *name, size_t n, const char *value) {
    undefine(u, name, n);
    u->macros = grow(u->macros, (u->macro_count + 1) * sizeof *u->macros);
    u->macros[u->macro_count++] =
        (struct macro){joined("%.*s", (int)n, name), joined("%s", value)};
}

static size_t name_length(const char *text) {
    size_t n = 0;
    while (is_name(text[n]))
        n++;
    return n;
}

static void define_option(struct unit *u, const char *operand) {
    size_t n = strcspn(operand, "=");
    define(u, operand, name_length(operand), operand[n] ? operand + n + 1 : "1");
}

/* Comments become blanks, spliced lines one line; line numbers count physical lines no more. */
static struct buf stripped(const struct buf *in) {
    struct buf out = {0};
    char quote = 0;
    for (size_t i = 0; i < in->n; i++) {
        const char *c = in->p + i;
        if (c[0] == '\\' && c[1] == '\n') {
            i++;
        } else if (quote) {
            size_t n = c[0] == '\\' && i + 1 < in->n ? 2 : 1;
            add(&out, c, n);
            quote = n == 1 && (c[0] == quote || c[0] == '\n') ? 0 : quote;
            i += n - 1;
        } else if (c[0] == '/' && c[1] == '/') {
            i += strcspn(c, "\n") - 1;
        } else if (c[0] == '/' && c[1] == '*') {
            const char *end = strstr(c + 2, "*/");
            size_t n = end ? (size_t)(end + 2 - c) : in->n - i;
            for (size_t k = 0; k < n; k++)
                if (c[k] == '\n')
                    add(&out, "\n", 1);
            add(&out, " ", 1);
            i += n - 1;
        } else {
            /* A quote after a digit separates digits. */
            int is_separator = c[0] == '\'' && i && isalnum((unsigned char)c[-1]);
            if (c[0] == '"' || (c[0] == '\'' && !is_separator))
                quote = c[0];
            add(&out, c, 1);
        }
    }
    text_of(&out);
    return out;
}

static const char *mapped(const struct unit *u, const char *path) {
    for (size_t i = u->d->maps.n; i--;) {
        const char *map = u->d->maps.v[i], *equals = strrchr(map, '=');
        size_t n = equals ? (size_t)(equals - map) : 0;
        if (equals && !strncmp(path, map, n))
            return joined("%s%s", equals + 1, path + n);
    }
    return path;
}

static char *in_directory(const char *dir, const char *name) {
    if (!*dir || *name == '/')
        return joined("%s", name);
    return joined("%s%s%s", dir, ends(dir, "/") ? "" : "/", name);
}

static size_t search_count(const struct driver *d) {
    return d->quote.n + d->angle.n + d->system.n + d->after.n;
}

/* The directory at a place of the whole search order; quoted ones come first. */
static const char *search_dir(const struct driver *d, size_t place) {
    const struct list *lists[] = {&d->quote, &d->angle, &d->system, &d->after};
    for (size_t i = 0; i < 4; i++) {
        if (place < lists[i]->n)
            return lists[i]->v[place];
        place -= lists[i]->n;
    }
    return NULL;
}

#define BESIDE ((size_t)-1) /* found beside the including file */

/* Spelled path of an included file and the place of its directory, or NULL. */
static char *found_include(struct unit *u, const char *name, int is_quoted, const char *from,
                           size_t first, size_t *place) {
    if (*name == '/') {
        *place = BESIDE;
        return is_file(name) ? joined("%s", name) : NULL;
    }
    char *beside = in_directory(dir_name(from), name);
    if (is_quoted && !first && is_file(beside)) {
        *place = BESIDE;
        return beside;
    }
    size_t start = is_quoted ? 0 : u->d->quote.n;
    for (size_t i = first > start ? first : start; i < search_count(u->d); i++) {
        char *path = in_directory(search_dir(u->d, i), name);
        if (is_file(path)) {
            *place = i;
            return path;
        }
    }
    return NULL;
}

struct file {
    const char *path;
    size_t place;
    int is_system, line;
};

static const char *skip_blanks(const char *text) {
    return text + strspn(text, " \t");
}

/* An include operand: its name, and whether it is quoted; NULL if it is neither form. */
static char *operand_of(struct unit *u, const char *text, int *is_quoted) {
    text = skip_blanks(text);
    size_t n = name_length(text);
    struct macro *macro = n ? macro_of(u, text, n) : NULL;
    if (macro)
        text = skip_blanks(macro->value);
    *is_quoted = *text == '"';
    if (*text != '"' && *text != '<')
        return NULL;
    size_t length = strcspn(text + 1, *is_quoted ? "\"" : ">");
    return text[1 + length] ? joined("%.*s", (int)length, text + 1) : NULL;
}

/* Conditions: || && ! comparisons ( ) defined __has_include numbers names. */
struct condition {
    struct unit *u;
    const struct file *file;
    const char *at;
};

static long either(struct condition *c);

static int accept(struct condition *c, const char *token) {
    c->at = skip_blanks(c->at);
    if (!starts(c->at, token))
        return 0;
    c->at += strlen(token);
    return 1;
}

static long is_defined(struct condition *c) {
    int is_group = accept(c, "(");
    c->at = skip_blanks(c->at);
    size_t n = name_length(c->at);
    long value = macro_of(c->u, c->at, n) != NULL;
    c->at += n;
    if (is_group)
        accept(c, ")");
    return value;
}

static long has_include(struct condition *c) {
    int is_quoted;
    size_t place;
    accept(c, "(");
    char *name = operand_of(c->u, c->at, &is_quoted);
    c->at += strcspn(c->at, ")");
    accept(c, ")");
    return name && found_include(c->u, name, is_quoted, c->file->path, 0, &place);
}

static long atom(struct condition *c) {
    if (accept(c, "!"))
        return !atom(c);
    if (accept(c, "(")) {
        long value = either(c);
        accept(c, ")");
        return value;
    }
    c->at = skip_blanks(c->at);
    size_t n = name_length(c->at);
    const char *name = c->at;
    c->at += n;
    if (n == 7 && starts(name, "defined"))
        return is_defined(c);
    if (n == 13 && starts(name, "__has_include"))
        return has_include(c);
    if (isdigit((unsigned char)*name))
        return strtol(name, NULL, 0);
    struct macro *macro = macro_of(c->u, name, n);
    if (!n)
        c->at += *c->at != 0; /* what is not understood must not stop the scan */
    return macro ? strtol(macro->value, NULL, 0) : 0;
}

static long compared(struct condition *c) {
    long left = atom(c);
    if (accept(c, "=="))
        return left == atom(c);
    if (accept(c, "!="))
        return left != atom(c);
    if (accept(c, ">="))
        return left >= atom(c);
    if (accept(c, "<="))
        return left <= atom(c);
    if (accept(c, ">"))
        return left > atom(c);
    if (accept(c, "<"))
        return left < atom(c);
    return left;
}

static long both(struct condition *c) {
    long value = compared(c);
    while (accept(c, "&&")) {
        long right = compared(c);
        value = value && right;
    }
    return value;
}

static long either(struct condition *c) {
    long value = both(c);
    while (accept(c, "||")) {
        long right = both(c);
        value = value || right;
    }
    return value;
}

static void scan_file(struct unit *u, const struct file *file);

static void include(struct unit *u, const struct file *from, const char *operand, size_t first) {
    int is_quoted;
    size_t place;
    char *name = operand_of(u, operand, &is_quoted);
    if (!name)
        die(1, "%s:%d:10: error: expected \"FILENAME\" or <FILENAME>", from->path, from->line);
    char *path = found_include(u, name, is_quoted, from->path, first, &place);
    if (!path)
        die(1, "%s:%d:10: fatal error: '%s' file not found", from->path, from->line, name);
    int is_system = place == BESIDE ? from->is_system : place >= u->d->quote.n + u->d->angle.n;
    struct file file = {path, place, is_system, 0};
    scan_file(u, &file);
}

static void directive(struct unit *u, const struct file *file, const char *line) {
    size_t n = name_length(line);
    const char *rest = skip_blanks(line + n);
    if (n == 7 && starts(line, "include"))
        include(u, file, rest, 0);
    else if (n == 12 && starts(line, "include_next"))
        include(u, file, rest, file->place == BESIDE ? 0 : file->place + 1);
    else if (n == 6 && starts(line, "define"))
        define(u, rest, name_length(rest), skip_blanks(rest + name_length(rest)));
    else if (n == 5 && starts(line, "undef"))
        undefine(u, rest, name_length(rest));
    else if (n == 6 && starts(line, "pragma") && starts(rest, "once"))
        push_new(&u->once, realpath(file->path, NULL));
    else if (n == 5 && starts(line, "error"))
        die(1, "%s:%d:2: error: %s", file->path, file->line, rest);
}

enum { ACTIVE, WAITING, DONE }; /* of a conditional: this branch, none yet, one was taken */

struct nest {
    char state[MAX_DEPTH];
    int depth;
};

static int is_active(const struct nest *nest) {
    for (int i = 0; i < nest->depth; i++)
        if (nest->state[i] != ACTIVE)
            return 0;
    return 1;
}

/* True if the line was a conditional. */
static int conditional(struct unit *u, const struct file *file, struct nest *nest, const char *line) {
    size_t n = name_length(line);
    const char *rest = skip_blanks(line + n);
    struct condition c = {u, file, rest};
    char *state = nest->depth ? &nest->state[nest->depth - 1] : NULL;
    if (starts(line, "if") && (n == 2 || (n == 5 && starts(line, "ifdef")) ||
                               (n == 6 && starts(line, "ifndef")))) {
        int is_set = macro_of(u, rest, name_length(rest)) != NULL;
        int is_true = !is_active(nest) ? 0 : n == 2 ? either(&c) != 0 : n == 5 ? is_set : !is_set;
        if (nest->depth == MAX_DEPTH)
            die(1, "%s:%d:2: error: conditionals are too deep", file->path, file->line);
        nest->state[nest->depth++] = is_true ? ACTIVE : WAITING;
    } else if (n == 4 && starts(line, "elif") && state) {
        *state = *state == WAITING && either(&c) ? ACTIVE : *state == WAITING ? WAITING : DONE;
    } else if (n == 4 && starts(line, "else") && state) {
        *state = *state == WAITING ? ACTIVE : DONE;
    } else if (n == 5 && starts(line, "endif") && state) {
        nest->depth--;
    } else {
        return 0;
    }
    return 1;
}

static void note_time(struct unit *u) {
    const char *epoch = getenv("SOURCE_DATE_EPOCH");
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (epoch)
        addf(&u->depends, "time=%s\n", epoch);
    else
        addf(&u->depends, "time=%lld.%09ld\n", (long long)now.tv_sec, now.tv_nsec);
}

static void plain_line(struct unit *u, const struct file *file, const char *line) {
    add(&u->text, line, strlen(line));
    add(&u->text, "\n", 1);
    if (strstr(line, "__FILE__") && !holds(&u->paths_in, file->path)) {
        push(&u->paths_in, file->path);
        addf(&u->depends, "path=%s\n", mapped(u, file->path));
    }
    if (strstr(line, "__DATE__") || strstr(line, "__TIME__") || strstr(line, "__TIMESTAMP__"))
        note_time(u);
}

static void carry_depends(struct unit *u, const char *text) {
    static const char mark[] = "// sim-depends: ";
    for (const char *at = text; (at = strstr(at, mark)); at++) {
        const char *line = at + sizeof mark - 1;
        addf(&u->depends, "carried=%.*s\n", (int)strcspn(line, "\n"), line);
    }
}

static void note_file(struct unit *u, const struct file *file, const struct buf *text) {
    if (holds(&u->opened, file->path))
        return;
    push(&u->opened, file->path);
    add(&u->is_system, file->is_system ? "s" : "u", 1);
    addf(&u->depends, "file=%s fnv=%016llx\n", base_name(file->path),
         (unsigned long long)fnv(text->p, text->n));
    carry_depends(u, text->p);
    refuse_if_contains(file->path, text);
}

static void scan_file(struct unit *u, const struct file *from) {
    struct file file = *from;
    struct buf raw = {0};
    char *canonical = realpath(file.path, NULL);
    if (canonical && holds(&u->once, canonical))
        return;
    if (++u->depth > 200)
        die(1, "%s:1:1: error: #include nested too deeply", file.path);
    if (!strcmp(file.path, "-") ? !read_fd(0, &raw) : !read_file(file.path, &raw))
        die(1, "%s: error: cannot read '%s': %s", tool, file.path, strerror(errno));
    note_file(u, &file, &raw);
    struct nest nest = {{0}, 0};
    struct buf text = stripped(&raw);
    char *rest = text.p, *line;
    while ((line = strsep(&rest, "\n"))) {
        file.line++;
        const char *start = line + strspn(line, " \t\r");
        if (*start != '#') {
            if (is_active(&nest))
                plain_line(u, &file, line);
            continue;
        }
        start = skip_blanks(start + 1);
        if (!conditional(u, &file, &nest, start) && is_active(&nest))
            directive(u, &file, start);
    }
    if (nest.depth)
        die(1, "%s:%d:2: error: unterminated conditional directive", file.path, file.line);
    u->depth--;
}

static void predefine(struct unit *u, const char *language) {
    const char *arch = u->d->arch ? u->d->arch : "";
    int is_new = starts(arch, "dav-3510") || starts(arch, "dav-c310");
    define_option(u, "__clang__");
    if (strcmp(language, "c"))
        define_option(u, "__cplusplus=201703");
    if (!strcmp(language, "asc") || !strcmp(language, "cce")) {
        define_option(u, is_new ? "__CCE_AICORE__=310" : "__CCE_AICORE__=220");
        define_option(u, is_new ? "__NPU_ARCH__=3510" : "__NPU_ARCH__=2201");
    }
    for (size_t i = 0; i < u->d->defines.n; i++)
        define_option(u, u->d->defines.v[i]);
    for (size_t i = 0; i < u->d->undefines.n; i++)
        undefine(u, u->d->undefines.v[i], strlen(u->d->undefines.v[i]));
}

static struct unit scanned(const struct driver *d, const struct input *input) {
    struct unit u;
    memset(&u, 0, sizeof u);
    u.d = d;
    predefine(&u, input->language);
    struct file main_file = {input->path, BESIDE, 0, 0};
    for (size_t i = 0; i < d->forced.n; i++) {
        struct file command_line = {"<command line>", BESIDE, 0, 1};
        include(&u, &command_line, joined("\"%s\"", d->forced.v[i]), 0);
    }
    scan_file(&u, &main_file);
    text_of(&u.text);
    text_of(&u.depends);
    return u;
}

/* ---- bisheng: outputs ----------------------------------------------------------------------- */

/* The name of the function whose parameters open at the first '(' after `text`; "" if none. */
static char *function_after(const char *text) {
    for (;;) {
        const char *open = text + strcspn(text, "(;{");
        if (*open != '(')
            return joined("%s", "");
        const char *end = open, *start;
        while (end > text && isspace((unsigned char)end[-1]))
            end--;
        for (start = end; start > text && is_name(start[-1]); start--)
            continue;
        if (!starts(start, "__") && start != end)
            return joined("%.*s", (int)(end - start), start);
        /* An attribute with arguments stands before the name. */
        int depth = 0;
        for (text = open; *text && (*text != ')' || --depth); text++)
            depth += *text == '(';
        text += *text != 0;
    }
}

static void add_functions(struct list *functions, const char *text, const char *mark) {
    for (const char *at = text; (at = strstr(at, mark)); at += strlen(mark)) {
        char *name = function_after(at + strlen(mark));
        if (*name)
            push_new(functions, name);
    }
}

static struct list kernels_of(const char *text) {
    struct list kernels = {0};
    add_functions(&kernels, text, "__global__");
    if (!kernels.n)
        push(&kernels, "kernel_entry");
    return kernels;
}

static uint32_t arch_flags(const char *arch) {
    static const struct {
        const char *name;
        uint32_t flags;
    } known[] = {{"dav-2201", 0x940000}, {"dav-c220", 0x940000}, {"dav-3510", 0x990000},
                 {"dav-c310", 0x990000}, {"dav-", 0x910000}};
    int is_wrong = is_damage("wrong-arch");
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (starts(arch, known[i].name))
            return is_wrong ? (known[i].flags == 0x990000 ? 0x940000 : 0x990000) : known[i].flags;
    die(1, "%s: error: unsupported NPU architecture '%s'", tool, arch);
}

static struct buf padding(void) {
    struct buf out = {0};
    long n = knob_number("output-bytes", 32);
    add_zeros(&out, n > 0 ? (size_t)n : 0);
    return out;
}

static struct buf own_depends(const struct driver *d) {
    struct buf out = {0};
    addf(&out, "tool=%s\nidentity=%s\narch=%s\n", tool, baked(baked_identity),
         d->arch ? d->arch : "default");
    if (d->is_object)
        addf(&out, "option=-c\n");
    if (d->is_shared)
        addf(&out, "option=-shared\n");
    for (size_t i = 0; i < d->counted.n; i++)
        addf(&out, "option=%s\n", d->counted.v[i]);
    add_surroundings(&out);
    return out;
}

static void add_debug(struct buf *depends, const struct unit *u, const struct input *input) {
    char cwd[PATH_MAX];
    if (u->d->is_debug && getcwd(cwd, sizeof cwd))
        addf(depends, "debug=%s in %s\n", mapped(u, input->path), mapped(u, cwd));
}

static const char *arch_of(const struct driver *d) {
    return d->arch ? d->arch : "dav-2201";
}

static struct buf compiled(const struct unit *u, const struct input *input, int type) {
    struct buf depends = own_depends(u->d), data = padding();
    add(&depends, u->depends.p, u->depends.n);
    add_debug(&depends, u, input);
    struct list kernels = kernels_of(u->text.p);
    return device_image(type, arch_flags(arch_of(u->d)), &kernels, &data, &depends);
}

static void add_image(struct host *host, const struct buf *image) {
    uint64_t record[] = {host->images.n, image->n};
    add(&host->images, image->p, image->n);
    add(&host->record, record, sizeof record);
    host->is_device = 1;
}

static void add_source(struct host *host, const struct unit *u, const struct input *input) {
    add(&host->depends, u->depends.p, u->depends.n);
    add_debug(&host->depends, u, input);
    add_functions(&host->functions, u->text.p, "extern \"C\"");
    add_functions(&host->functions, u->text.p, "__global__");
    if (strcmp(input->language, "asc") && strcmp(input->language, "cce"))
        return;
    struct buf image = compiled(u, input, ET_EXEC);
    add_image(host, &image);
}

static void add_object(struct host *host, const char *path) {
    struct buf file = {0};
    if (!read_file(path, &file) || !header_of(&file))
        die(1, "ld.lld: error: %s: not an ELF file", path);
    struct buf depends = content_of(&file, ".sim.depends");
    add(&host->depends, depends.p, depends.n);
    struct list functions = {0};
    add_functions_of(&file, &functions);
    if (header_of(&file)->e_machine == AICORE) {
        struct buf data = content_of(&file, ".data");
        struct buf image =
            device_image(ET_EXEC, header_of(&file)->e_flags, &functions, &data, &depends);
        add_image(host, &image);
    } else {
        struct buf images = content_of(&file, ".aicore_binary");
        if (images.n)
            add_image(host, &images);
    }
    for (size_t i = 0; i < functions.n; i++)
        push_new(&host->functions, functions.v[i]);
}

static int is_system_library(const char *name) {
    static const char *const known[] = {"m", "dl", "c", "rt", "pthread", "stdc++", "gcc_s", NULL};
    for (const char *const *k = known; *k; k++)
        if (!strcmp(name, *k))
            return 1;
    return 0;
}

static void write_link_depfile(const char *path, const char *output, const struct list *opened) {
    struct buf out = {0};
    addf(&out, "%s:", make_quoted(output).p);
    for (size_t i = 0; i < opened->n; i++)
        addf(&out, " \\\n  %s", make_quoted(opened->v[i]).p);
    addf(&out, "\n");
    for (size_t i = 0; i < opened->n; i++)
        addf(&out, "\n%s:\n", make_quoted(opened->v[i]).p);
    write_file(path, &out, 0644);
}

static void add_library(struct host *host, struct driver *d, const char *name) {
    struct list dirs = {0};
    for (size_t i = 0; i < d->library_dirs.n; i++)
        push(&dirs, d->library_dirs.v[i]);
    push(&dirs, joined("%s/lib64", dir_name(dir_name(dir_name(exe_dir)))));
    for (size_t i = 0; i < dirs.n; i++) {
        struct buf file = {0};
        const char *path = joined("%s/lib%s.so", dirs.v[i], name);
        if (!read_file(path, &file))
            continue;
        push(&d->linked, path);
        addf(&host->depends, "library=%s fnv=%016llx\n", name,
             (unsigned long long)fnv(file.p, file.n));
        return;
    }
    if (!is_system_library(name))
        die(1, "ld.lld: error: unable to find library -l%s", name);
}

static void write_depfile(const struct driver *d, const struct unit *units) {
    struct buf out = {0};
    if (!d->targets.n)
        add(&out, make_quoted(d->output).p, make_quoted(d->output).n);
    for (size_t i = 0; i < d->targets.n; i++)
        addf(&out, "%s%s", i ? " " : "", d->targets.v[i]);
    addf(&out, ":");
    struct list seen = {0};
    for (size_t k = 0; k < d->input_count; k++)
        for (size_t i = 0; i < units[k].opened.n; i++)
            if (!(d->no_system_depends && units[k].is_system.p[i] == 's'))
                push_new(&seen, units[k].opened.v[i]);
    for (size_t i = 0; i < seen.n; i++)
        addf(&out, "%s%s", i ? " \\\n  " : " ", make_quoted(seen.v[i]).p);
    addf(&out, "\n");
    for (size_t i = 1; d->phony && i < seen.n; i++)
        addf(&out, "%s:\n", make_quoted(seen.v[i]).p);
    const char *path = d->depfile;
    if (!path) {
        const char *dot = strrchr(base_name(d->output), '.');
        path = joined("%.*s.d", (int)(dot ? dot - d->output : (long)strlen(d->output)), d->output);
    }
    write_file(path, &out, 0644);
}

static const char banner[] =
    "2026-05-09T12:45:09+08:00 clang version 15.0.5 (clang-5c68a1cb1231 flang-5c68a1cb1231)\n"
    "Target: "
#if defined(__x86_64__)
    "x86_64-unknown-linux-gnu\n";
#else
    "aarch64-unknown-linux-gnu\n";
#endif

static void print_dirs(const struct list *dirs) {
    for (size_t i = 0; i < dirs->n; i++)
        if (is_dir(dirs->v[i]))
            fprintf(stderr, " %s\n", dirs->v[i]);
}

static int print_search(const struct driver *d) {
    fprintf(stderr, "%s", banner);
    for (size_t i = 0; i < search_count(d); i++)
        if (!is_dir(search_dir(d, i)))
            fprintf(stderr, "ignoring nonexistent directory \"%s\"\n", search_dir(d, i));
    fprintf(stderr, "#include \"...\" search starts here:\n");
    print_dirs(&d->quote);
    fprintf(stderr, "#include <...> search starts here:\n");
    print_dirs(&d->angle);
    print_dirs(&d->system);
    print_dirs(&d->after);
    fprintf(stderr, "End of search list.\n");
    return 0;
}

static int is_device_object(const struct driver *d) {
    if (d->is_device_only)
        return 1;
    return !d->is_object && !d->is_shared && ends(d->output, ".o") &&
           !strcmp(d->inputs[0].language, "asc");
}

static struct buf driver_result(struct driver *d, struct unit *units) {
    struct host host;
    memset(&host, 0, sizeof host);
    host.depends = own_depends(d);
    for (size_t i = 0; i < d->input_count; i++) {
        int is_object = !strcmp(d->inputs[i].language, "object");
        if (!is_object)
            units[i] = scanned(d, &d->inputs[i]);
        if (is_device_object(d) && !is_object)
            return compiled(&units[i], &d->inputs[i], ET_REL);
        if (is_object) {
            push(&d->linked, d->inputs[i].path);
            add_object(&host, d->inputs[i].path);
        } else
            add_source(&host, &units[i], &d->inputs[i]);
    }
    if (!d->is_object)
        for (size_t i = 0; i < d->libraries.n; i++)
            add_library(&host, d, d->libraries.v[i]);
    if (!host.functions.n)
        push(&host.functions, "kernel_entry");
    return d->is_object ? host_object(&host) : host_library(&host);
}

static int run_bisheng(int argc, char **argv) {
    if (argc == 2 && !strcmp(argv[1], "--version"))
        return say_version(joined("%sInstalledDir: %s\n", banner, exe_dir));
    if (argc == 2 && !strcmp(argv[1], "-Wl,--help")) {
        puts("OPTIONS:\n  --dependency-file=<file> Write a dependency file");
        return 0;
    }
    struct driver d;
    memset(&d, 0, sizeof d);
    driver_parse(&d, argc, argv);
    if (d.is_search && (d.is_preprocess || !d.input_count))
        return print_search(&d);
    if (!d.input_count)
        die(1, "%s: error: no input files", tool);
    if (d.is_preprocess)
        return !write_all(1, scanned(&d, &d.inputs[0]).text.p,
                          scanned(&d, &d.inputs[0]).text.n);
    if ((d.is_object || d.is_device_only) && d.input_count > 1 && d.output)
        die(1, "%s: error: cannot specify -o when generating multiple output files", tool);
    if (!d.output)
        d.output = d.is_object ? joined("%.*s.o", (int)strcspn(base_name(d.inputs[0].path), "."),
                                        base_name(d.inputs[0].path))
                               : "a.out";
    obey_knobs(argv);
    struct unit *units = calloc(d.input_count, sizeof *units);
    if (!units)
        die(70, "%s: out of memory", tool);
    struct buf out = driver_result(&d, units);
    if (d.depends)
        write_depfile(&d, units);
    if (d.link_depfile && !d.is_object)
        write_link_depfile(d.link_depfile, d.output, &d.linked);
    deliver(d.output, &out, d.is_object || d.is_device_only ? 0644 : 0755);
    return 0;
}

/* ---- ld.lld and llvm-objcopy ---------------------------------------------------------------- */

struct link {
    struct list inputs, counted, dirs, libraries;
    const char *output, *emulation, *depfile;
};

static void link_parse(struct link *l, int argc, char **argv) {
    static const char *const separate[] = {"-Ttext", "-T", "-z", "-e", "-rpath", "-soname", NULL};
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i], *next = i + 1 < argc ? argv[i + 1] : "";
        if (!strcmp(a, "-m") || !strcmp(a, "-o") || !strcmp(a, "-L")) {
            if (a[1] == 'm')
                l->emulation = next;
            if (a[1] == 'o')
                l->output = next;
            if (a[1] == 'L')
                push(&l->dirs, next);
            i++;
        } else if (starts(a, "--dependency-file=")) {
            l->depfile = strchr(a, '=') + 1;
        } else if (starts(a, "-L")) {
            push(&l->dirs, a + 2);
        } else if (starts(a, "-l") && a[2]) {
            push(&l->libraries, a + 2);
        } else if (starts(a, "-m") && a[2]) {
            l->emulation = a + 2;
        } else if (*a == '-') {
            int has_value = 0;
            for (const char *const *s = separate; *s; s++)
                has_value |= !strcmp(a, *s);
            push(&l->counted, has_value ? joined("%s %s", a, next) : a);
            i += has_value;
        } else {
            push(&l->inputs, a);
        }
    }
}

/* The content of each library counts; what was opened is added to the inputs. */
static void link_libraries(struct link *l, struct buf *depends) {
    for (size_t k = 0; k < l->libraries.n; k++) {
        const char *name = l->libraries.v[k];
        struct buf file = {0};
        size_t i = 0;
        for (; i < l->dirs.n; i++) {
            const char *path = joined("%s/lib%s.a", l->dirs.v[i], name);
            if (!read_file(path, &file))
                continue;
            push(&l->inputs, path);
            break;
        }
        if (i == l->dirs.n)
            die(1, "ld.lld: error: unable to find library -l%s", name);
        addf(depends, "library=%s fnv=%016llx\n", name,
             (unsigned long long)fnv(file.p, file.n));
    }
}

static int run_lld(int argc, char **argv) {
    if (argc == 2 && !strcmp(argv[1], "--version"))
        return say_version("LLD 15.0.5 (compatible with GNU linkers)\n");
    struct link l;
    memset(&l, 0, sizeof l);
    link_parse(&l, argc, argv);
    if (!l.emulation || strcmp(l.emulation, "aicorelinux"))
        die(1, "ld.lld: error: unknown emulation: %s", l.emulation ? l.emulation : "none");
    if (!l.inputs.n)
        die(1, "ld.lld: error: no input files");
    obey_knobs(argv);
    struct list functions = {0};
    struct buf depends = {0}, data = {0};
    uint32_t flags = 0;
    addf(&depends, "tool=ld.lld\nidentity=%s\nemulation=%s\n", baked(baked_identity), l.emulation);
    for (size_t i = 0; i < l.counted.n; i++)
        addf(&depends, "option=%s\n", l.counted.v[i]);
    add_surroundings(&depends);
    for (size_t i = 0; i < l.inputs.n; i++) {
        struct buf file = {0};
        if (!read_file(l.inputs.v[i], &file))
            die(1, "ld.lld: error: cannot open %s: %s", l.inputs.v[i], strerror(errno));
        const Elf64_Ehdr *h = header_of(&file);
        if (!h || h->e_machine != AICORE || (i && h->e_flags != flags))
            die(1, "ld.lld: error: %s is incompatible with aicorelinux", l.inputs.v[i]);
        flags = h->e_flags;
        add_functions_of(&file, &functions);
        struct buf inner = content_of(&file, ".sim.depends"), bytes = content_of(&file, ".data");
        addf(&depends, "input=%zu\n", i);
        add(&depends, inner.p, inner.n);
        add(&data, bytes.p, bytes.n);
    }
    link_libraries(&l, &depends);
    if (l.depfile)
        write_link_depfile(l.depfile, l.output ? l.output : "a.out", &l.inputs);
    struct buf more = padding();
    if (knob("output-bytes") && more.n > data.n)
        data = more;
    if (is_damage("wrong-arch"))
        flags = flags == 0x990000 ? 0x940000 : 0x990000;
    struct buf out = device_image(ET_EXEC, flags, &functions, &data, &depends);
    deliver(l.output ? l.output : "a.out", &out, 0755);
    return 0;
}

static int run_objcopy(int argc, char **argv) {
    const char *section = NULL, *format = "", *files[2] = {NULL, NULL};
    size_t count = 0;
    if (argc == 2 && !strcmp(argv[1], "--version"))
        return say_version("llvm-objcopy, compatible with GNU objcopy\nLLVM version 15.0.5\n");
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "-O") && i + 1 < argc)
            format = argv[++i];
        else if (starts(argv[i], "--only-section="))
            section = strchr(argv[i], '=') + 1;
        else if ((!strcmp(argv[i], "-j") || !strcmp(argv[i], "--only-section")) && i + 1 < argc)
            section = argv[++i];
        else if (*argv[i] == '-' || count == 2)
            die(1, "llvm-objcopy: error: unknown argument '%s'", argv[i]);
        else
            files[count++] = argv[i];
    }
    if (count != 2 || !section || strcmp(format, "binary"))
        die(1, "llvm-objcopy: error: wanted: -O binary --only-section=NAME IN OUT");
    obey_knobs(argv);
    struct buf file = {0};
    if (!read_file(files[0], &file) || !header_of(&file))
        die(1, "llvm-objcopy: error: '%s': not an ELF file", files[0]);
    struct buf out = content_of(&file, section);
    deliver(files[1], &out, 0644);
    return 0;
}

int main(int argc, char **argv) {
    ssize_t n = readlink("/proc/self/exe", exe_dir, sizeof exe_dir - 1);
    exe_dir[n > 0 ? n : 0] = 0;
    char *slash = strrchr(exe_dir, '/');
    if (slash)
        *slash = 0;
    tool = argc ? base_name(argv[0]) : "";
    log_run(tool, argv);
    if (!strcmp(tool, "ptoas"))
        return run_ptoas(argc, argv);
    if (!strcmp(tool, "bisheng") || !strcmp(tool, "ccec"))
        return run_bisheng(argc, argv);
    if (!strcmp(tool, "ld.lld"))
        return run_lld(argc, argv);
    if (!strcmp(tool, "llvm-objcopy"))
        return run_objcopy(argc, argv);
    die(127, "simcann: no tool is called '%s'", tool);
}
