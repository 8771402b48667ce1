/* Counts what Python asks its allocators for: ``benchmarks/budget_server.py`` compiles and loads it, if it can. */
#include <stddef.h>

typedef struct {
    void *context;
    void *(*malloc)(void *, size_t);
    void *(*calloc)(void *, size_t, size_t);
    void *(*realloc)(void *, void *, size_t);
    void (*free)(void *, void *);
} Allocator;

/* As in Python's cpython/pymem.h: declared here because the headers are often not installed. */
extern void PyMem_GetAllocator(int domain, Allocator *allocator);
extern void PyMem_SetAllocator(int domain, Allocator *allocator);

enum { DOMAINS = 3 };
static Allocator real[DOMAINS];
static long long count, bytes;
static __thread int left_out;

static void note(size_t size)
{
    if (left_out)
        return;
    /* One domain is used without the interpreter's lock. */
    __atomic_fetch_add(&count, 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(&bytes, (long long)size, __ATOMIC_RELAXED);
}

static void *counted_malloc(void *context, size_t size)
{
    Allocator *allocator = context;
    note(size);
    return allocator->malloc(allocator->context, size);
}

static void *counted_calloc(void *context, size_t elements, size_t size)
{
    Allocator *allocator = context;
    note(elements * size);
    return allocator->calloc(allocator->context, elements, size);
}

static void *counted_realloc(void *context, void *block, size_t size)
{
    Allocator *allocator = context;
    note(size);
    return allocator->realloc(allocator->context, block, size);
}

static void counted_free(void *context, void *block)
{
    Allocator *allocator = context;
    allocator->free(allocator->context, block);
}

void begin(void)
{
    for (int domain = 0; domain < DOMAINS; domain++) {
        PyMem_GetAllocator(domain, &real[domain]);
        Allocator counted = {&real[domain], counted_malloc, counted_calloc, counted_realloc, counted_free};
        PyMem_SetAllocator(domain, &counted);
    }
}

/* The calling thread does not count from now on. */
void leave_out(void)
{
    left_out = 1;
}

void read_totals(long long *totals)
{
    totals[0] = __atomic_load_n(&count, __ATOMIC_RELAXED);
    totals[1] = __atomic_load_n(&bytes, __ATOMIC_RELAXED);
}
