/* A libnvidia-ml.so.1 without a GPU, for tests.
 *
 * Every call looks into the text file $FAKE_NVML_CONTROL, read again whenever it changes. A line is
 * `WHERE KEY VALUE`: WHERE is a GPU index or `*`, KEY a function name without its `nvmlDeviceGet` (see each
 * call below) with `.part` where it has several numbers, VALUE a number, a text, `!15` for an NVML error, or
 * `hang` for a call that never returns. A later line wins. Where no line speaks, an idle H200 answers.
 * Struct layouts are those of nvml.h, as nvidia-ml-py declares them.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_LINES = 4096, MAX_GPUS = 16, MAX_SLICES = 7, NOT_SUPPORTED = 3, INVALID = 2, TIMEOUT = 10 };
typedef struct { char where[8], key[64], value[96]; } line_t;
typedef struct { int gpu, slice; } device_t;

static line_t lines[MAX_LINES];
static int line_count;
static struct timespec read_at;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static device_t gpus[MAX_GPUS], slices[MAX_GPUS][MAX_SLICES];
static uint64_t gpm_clock;

static void read_control(void) {
    const char *path = getenv("FAKE_NVML_CONTROL");
    struct stat now;
    if (!path || stat(path, &now)) return;
    if (now.st_mtim.tv_sec == read_at.tv_sec && now.st_mtim.tv_nsec == read_at.tv_nsec) return;
    FILE *file = fopen(path, "r");
    if (!file) return;
    read_at = now.st_mtim;
    line_count = 0;
    char text[256];
    while (line_count < MAX_LINES && fgets(text, sizeof text, file)) {
        line_t *line = &lines[line_count];
        if (sscanf(text, "%7s %63s %95[^\n]", line->where, line->key, line->value) == 3) line_count++;
    }
    fclose(file);
}

/* Copies the value of the last line that speaks about this key, and says whether there is one. */
static int find(int gpu, const char *key, char *value) {
    char where[8];
    int found = 0;
    snprintf(where, sizeof where, "%d", gpu);
    pthread_mutex_lock(&lock);
    read_control();
    for (int i = line_count - 1; i >= 0 && !found; i--)
        if ((!strcmp(lines[i].where, "*") || !strcmp(lines[i].where, where)) && !strcmp(lines[i].key, key)) {
            strcpy(value, lines[i].value);
            found = 1;
        }
    pthread_mutex_unlock(&lock);
    return found;
}

/* What happens before a call answers: hang, fail, or go on. */
static int enter(int gpu, const char *call) {
    char value[96];
    const char *keys[] = {"all", call};
    for (int i = 0; i < 2; i++)
        if (find(gpu, keys[i], value)) {
            while (!strcmp(value, "hang")) pause();
            if (value[0] == '!') return atoi(value + 1);
        }
    return 0;
}

static double number(int gpu, const char *key, double otherwise) {
    char value[96];
    return find(gpu, key, value) && value[0] != '!' && strcmp(value, "hang") ? atof(value) : otherwise;
}

static double part(int gpu, const char *call, const char *name, double otherwise) {
    char key[64];
    snprintf(key, sizeof key, "%s.%s", call, name);
    return number(gpu, key, otherwise);
}

static void text(int gpu, const char *key, const char *otherwise, char *out, unsigned length) {
    char value[96];
    snprintf(out, length, "%s", find(gpu, key, value) ? value : otherwise);
}

static int ask_uint(device_t *device, const char *call, unsigned *out, double otherwise) {
    int error = enter(device->gpu, call);
    if (!error) *out = (unsigned)number(device->gpu, call, otherwise);
    return error;
}

/* A call that an H200 does not support unless a line gives it a number. */
static int ask_rare(device_t *device, const char *call, unsigned *out) {
    char value[96];
    int error = enter(device->gpu, call);
    if (error || !find(device->gpu, call, value)) return error ? error : NOT_SUPPORTED;
    *out = (unsigned)atof(value);
    return 0;
}

#define UINT_CALL(name, otherwise) \
    int nvmlDeviceGet##name(device_t *device, unsigned *out) { return ask_uint(device, #name, out, otherwise); }
#define RARE_CALL(name) \
    int nvmlDeviceGet##name(device_t *device, unsigned *out) { return ask_rare(device, #name, out); }
#define TEXT_CALL(name, otherwise)                                                  \
    int nvmlDeviceGet##name(device_t *device, char *out, unsigned length) {         \
        int error = enter(device->gpu, #name);                                      \
        if (!error) text(device->gpu, #name, otherwise, out, length);               \
        return error;                                                               \
    }

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    for (int i = 0; i < MAX_GPUS; i++) {
        gpus[i] = (device_t){i, -1};
        for (int j = 0; j < MAX_SLICES; j++) slices[i][j] = (device_t){i, j};
    }
    return enter(-1, "Init");
}
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) { (void)code; return "fake error"; }
int nvmlSystemGetDriverVersion(char *out, unsigned length) { text(-1, "DriverVersion", "580.159.04", out, length); return 0; }
int nvmlSystemGetNVMLVersion(char *out, unsigned length) { text(-1, "NVMLVersion", "13.580.159.04", out, length); return 0; }
int nvmlDeviceGetCount_v2(unsigned *out) {
    int error = enter(-1, "Count");
    *out = (unsigned)number(-1, "Count", 1);
    return error;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, device_t **out) {
    if (index >= MAX_GPUS) return INVALID;
    *out = &gpus[index];
    return enter((int)index, "HandleByIndex");
}

int nvmlDeviceGetUUID(device_t *device, char *out, unsigned length) {
    char own[96], key[32];
    snprintf(own, sizeof own, device->slice < 0 ? "GPU-00000000-0000-0000-0000-%012d" : "MIG-00000000-0000-0000-%04d-%012d",
             device->slice < 0 ? device->gpu : device->slice, device->gpu);
    snprintf(key, sizeof key, device->slice < 0 ? "UUID" : "slice%d.UUID", device->slice);
    text(device->gpu, key, own, out, length);
    return enter(device->gpu, "UUID");
}
int nvmlDeviceGetName(device_t *device, char *out, unsigned length) {
    char key[32], profile[96];
    snprintf(key, sizeof key, "slice%d.profile", device->slice);
    if (device->slice < 0) text(device->gpu, "Name", "NVIDIA H200", out, length);
    else {
        text(device->gpu, key, "1g.18gb", profile, sizeof profile);
        snprintf(out, length, "NVIDIA H200 MIG %s", profile);
    }
    return enter(device->gpu, "Name");
}
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } pci_t;
int nvmlDeviceGetPciInfo_v3(device_t *device, pci_t *out) {
    memset(out, 0, sizeof *out);
    out->bus = 0x10 + (unsigned)device->gpu;
    snprintf(out->bus_id, sizeof out->bus_id, "00000000:%02X:00.0", out->bus);
    return enter(device->gpu, "PciInfo");
}
UINT_CALL(MinorNumber, device->gpu)
TEXT_CALL(Serial, "1650000000001")
TEXT_CALL(VbiosVersion, "96.00.D9.00.01")
TEXT_CALL(InforomImageVersion, "G520.0200.00.05")
int nvmlDeviceGetInforomVersion(device_t *device, int object, char *out, unsigned length) {
    (void)object;
    text(device->gpu, "InforomVersion", "2.1", out, length);
    return enter(device->gpu, "InforomVersion");
}
UINT_CALL(Brand, 14)

typedef struct { unsigned gpu, memory; } utilization_t;
int nvmlDeviceGetUtilizationRates(device_t *device, utilization_t *out) {
    out->gpu = (unsigned)part(device->gpu, "UtilizationRates", "gpu", 0);
    out->memory = (unsigned)part(device->gpu, "UtilizationRates", "memory", 0);
    return enter(device->gpu, "UtilizationRates");
}
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_t;
int nvmlDeviceGetMemoryInfo_v2(device_t *device, memory_t *out) {
    char call[32] = "MemoryInfo";
    if (device->slice >= 0) snprintf(call, sizeof call, "slice%d.MemoryInfo", device->slice);
    out->total = (unsigned long long)part(device->gpu, call, "total", 150754820096.0);
    out->reserved = (unsigned long long)part(device->gpu, call, "reserved", 644939776.0);
    out->used = (unsigned long long)part(device->gpu, call, "used", 0);
    out->free = out->total - out->reserved - out->used;
    return enter(device->gpu, "MemoryInfo");
}
typedef struct { unsigned long long total, free, used; } bar1_t;
int nvmlDeviceGetMemoryInfo(device_t *device, bar1_t *out) {
    memory_t memory;
    int error = nvmlDeviceGetMemoryInfo_v2(device, &memory);
    *out = (bar1_t){memory.total, memory.free, memory.used + memory.reserved};
    return error;
}
int nvmlDeviceGetBAR1MemoryInfo(device_t *device, bar1_t *out) {
    *out = (bar1_t){274877906944ull, 274876203008ull, 1703936ull};
    return enter(device->gpu, "BAR1MemoryInfo");
}
int nvmlDeviceGetTemperature(device_t *device, int sensor, unsigned *out) {
    (void)sensor;
    return ask_uint(device, "Temperature", out, 37);
}
int nvmlDeviceGetTemperatureThreshold(device_t *device, int which, unsigned *out) {
    char call[32];
    snprintf(call, sizeof call, "TemperatureThreshold.%d", which);
    return ask_rare(device, call, out);
}
typedef struct { unsigned version; int margin; } margin_t;
int nvmlDeviceGetMarginTemperature(device_t *device, margin_t *out) {
    out->margin = (int)number(device->gpu, "MarginTemperature", 50);
    return enter(device->gpu, "MarginTemperature");
}
int nvmlDeviceGetClockInfo(device_t *device, int domain, unsigned *out) {
    char call[32];
    snprintf(call, sizeof call, "ClockInfo.%d", domain);
    return ask_uint(device, call, out, domain == 2 ? 3201 : 1980);
}
int nvmlDeviceGetMaxClockInfo(device_t *device, int domain, unsigned *out) {
    return ask_uint(device, "MaxClockInfo", out, domain == 2 ? 3201 : 1980);
}
int nvmlDeviceGetCurrentClocksEventReasons(device_t *device, unsigned long long *out) {
    *out = (unsigned long long)number(device->gpu, "CurrentClocksEventReasons", 1);
    return enter(device->gpu, "CurrentClocksEventReasons");
}
UINT_CALL(PerformanceState, 0)
RARE_CALL(FanSpeed)
UINT_CALL(PowerUsage, 129343)
UINT_CALL(PowerManagementLimit, 700000)
UINT_CALL(PowerManagementDefaultLimit, 700000)
UINT_CALL(EnforcedPowerLimit, 700000)
int nvmlDeviceGetPowerManagementLimitConstraints(device_t *device, unsigned *low, unsigned *high) {
    *low = 200000, *high = 700000;
    return enter(device->gpu, "PowerManagementLimitConstraints");
}
int nvmlDeviceGetTotalEnergyConsumption(device_t *device, unsigned long long *out) {
    *out = (unsigned long long)number(device->gpu, "TotalEnergyConsumption", 2406305);
    usleep((unsigned)number(device->gpu, "TotalEnergyConsumption.us", 0));
    return enter(device->gpu, "TotalEnergyConsumption");
}
int nvmlDeviceGetPcieThroughput(device_t *device, int counter, unsigned *out) {
    (void)counter;
    usleep((unsigned)number(device->gpu, "PcieThroughput.us", 0));
    return ask_uint(device, "PcieThroughput", out, 1024);
}
UINT_CALL(PcieReplayCounter, 0)
UINT_CALL(CurrPcieLinkGeneration, 5)
UINT_CALL(MaxPcieLinkGeneration, 5)
UINT_CALL(CurrPcieLinkWidth, 16)
UINT_CALL(MaxPcieLinkWidth, 16)
int nvmlDeviceGetEncoderUtilization(device_t *device, unsigned *out, unsigned *period) {
    *period = 100000;
    return ask_uint(device, "EncoderUtilization", out, 0);
}
int nvmlDeviceGetDecoderUtilization(device_t *device, unsigned *out, unsigned *period) {
    *period = 100000;
    return ask_uint(device, "DecoderUtilization", out, 0);
}
typedef struct { unsigned max, high, partial, low, none; } banks_t;
int nvmlDeviceGetRowRemapperHistogram(device_t *device, banks_t *out) {
    *out = (banks_t){2560, 0, 0, 0, (unsigned)part(device->gpu, "RowRemapperHistogram", "none", 0)};
    return enter(device->gpu, "RowRemapperHistogram");
}
int nvmlDeviceGetRemappedRows(device_t *device, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
    *corrected = (unsigned)part(device->gpu, "RemappedRows", "correctable", 0);
    *uncorrected = (unsigned)part(device->gpu, "RemappedRows", "uncorrectable", 0);
    *pending = (unsigned)part(device->gpu, "RemappedRows", "pending", 0);
    *failed = (unsigned)part(device->gpu, "RemappedRows", "failure", 0);
    return enter(device->gpu, "RemappedRows");
}
int nvmlDeviceGetNvLinkErrorCounter(device_t *device, unsigned link, int counter, unsigned long long *out) {
    char call[32];
    unsigned value;
    snprintf(call, sizeof call, "NvLink.%u.%d", link, counter);
    int error = ask_rare(device, call, &value);
    *out = error ? 0 : value;
    return error;
}
int nvmlDeviceGetNvLinkState(device_t *device, unsigned link, unsigned *out) {
    char call[32];
    snprintf(call, sizeof call, "NvLinkState.%u", link);
    return ask_rare(device, call, out);
}
typedef struct { unsigned version; unsigned char uuid[16]; int status; unsigned clique; unsigned char state; unsigned health; } fabric_t;
int nvmlDeviceGetGpuFabricInfoV(device_t *device, fabric_t *out) {
    out->state = (unsigned char)part(device->gpu, "GpuFabricInfo", "state", 0);
    out->health = (unsigned)part(device->gpu, "GpuFabricInfo", "health", 0);
    out->status = (int)part(device->gpu, "GpuFabricInfo", "status", 0);
    return enter(device->gpu, "GpuFabricInfo");
}
typedef struct { unsigned pid; unsigned long long used; unsigned gi, ci; } running_t;
static int running(device_t *device, const char *call, unsigned *count, running_t *out) {
    unsigned there = (unsigned)number(device->gpu, call, 0);
    int error = enter(device->gpu, call);
    if (error || !there) { *count = 0; return error; }
    if (*count < there) { *count = there; return 7; }
    *count = there;
    for (unsigned i = 0; i < there; i++) {
        char pid[16], slice[16];
        snprintf(pid, sizeof pid, "pid%u", i);
        snprintf(slice, sizeof slice, "slice%u", i);
        out[i] = (running_t){(unsigned)part(device->gpu, call, pid, 1000 + i), 1 << 20,
                             (unsigned)part(device->gpu, call, slice, 4294967295.0), ~0u};
    }
    return 0;
}
/* `ComputeProcesses.pid0 4711` is the first program's pid, `.slice0 2` its slice; `ProcessUtilization.4711 40` how busy
 * it is; without any such line NVML has no samples. */
typedef struct { unsigned pid; unsigned long long time; unsigned sm, memory, encoder, decoder; } busy_t;
int nvmlDeviceGetProcessUtilization(device_t *device, busy_t *out, unsigned *count, unsigned long long since) {
    static unsigned long long clock_us;
    running_t programs[64];
    unsigned there = 64, found = 0, room = *count;
    int error = enter(device->gpu, "ProcessUtilization");
    if (error || running(device, "ComputeProcesses", &there, programs)) return error;
    (void)since;
    for (unsigned i = 0; i < there; i++) {
        char key[48], value[96];
        snprintf(key, sizeof key, "ProcessUtilization.%u", programs[i].pid);
        if (!find(device->gpu, key, value)) continue;
        if (out && found < room) out[found] = (busy_t){programs[i].pid, ++clock_us + 1000000, (unsigned)atof(value), 0, 0, 0};
        found++;
    }
    *count = found;
    return !found ? 6 : room < found ? 7 : 0;
}
int nvmlDeviceGetComputeRunningProcesses_v3(device_t *device, unsigned *count, running_t *out) { return running(device, "ComputeProcesses", count, out); }
int nvmlDeviceGetGraphicsRunningProcesses_v3(device_t *device, unsigned *count, running_t *out) { return running(device, "GraphicsProcesses", count, out); }
int nvmlDeviceValidateInforom(device_t *device) { return enter(device->gpu, "ValidateInforom"); }
UINT_CALL(PersistenceMode, 1)
UINT_CALL(ComputeMode, 0)

/* Fields: `Field.82 38`; those an idle H200 answers are listed, the rest is unsupported. */
typedef struct { unsigned id, scope; long long time, latency; unsigned type; int result; union { double d; long long s; int i; } value; } field_t;
static const struct { unsigned id; double value; } fields[] = {
    {1, 1}, {2, 1}, {3, 0}, {4, 0}, {5, 0}, {6, 0}, {74, 0}, {75, 0}, {76, 0}, {77, 0}, {78, 17598467904.0}, {79, 0},
    {80, 8195060320.0}, {81, 8195060320.0}, {82, 38}, {173, 0}, {186, 129170}, {194, -2}, {230, 0}, {269, 0}, {270, 0}, {271, 0}};
int nvmlDeviceGetFieldValues(device_t *device, int count, field_t *out) {
    int error = enter(device->gpu, "FieldValues");
    for (int i = 0; i < count && !error; i++) {
        char key[32], value[96];
        snprintf(key, sizeof key, out[i].scope ? "Field.%u.%u" : "Field.%u", out[i].id, out[i].scope);
        out[i].result = NOT_SUPPORTED;
        out[i].type = 4;
        for (unsigned j = 0; j < sizeof fields / sizeof *fields; j++)
            if (fields[j].id == out[i].id) out[i].result = 0, out[i].value.s = (long long)fields[j].value;
        if (find(device->gpu, key, value)) {
            out[i].result = value[0] == '!' ? atoi(value + 1) : 0;
            out[i].value.s = (long long)atof(value);
        }
    }
    return error;
}

/* MIG: `MigMode 1`, `slices 2`, and for each `sliceN.id`, `sliceN.profile`, `sliceN.MemoryInfo.used`. */
int nvmlDeviceGetMigMode(device_t *device, unsigned *now, unsigned *pending) {
    *pending = *now = (unsigned)number(device->gpu, "MigMode", 0);
    return enter(device->gpu, "MigMode");
}
int nvmlDeviceGetMaxMigDeviceCount(device_t *device, unsigned *out) { (void)device; *out = MAX_SLICES; return 0; }
int nvmlDeviceGetMigDeviceHandleByIndex(device_t *device, unsigned index, device_t **out) {
    if (index >= (unsigned)number(device->gpu, "slices", 0)) return 6;
    *out = &slices[device->gpu][index];
    return 0;
}
int nvmlDeviceGetGpuInstanceId(device_t *device, unsigned *out) {
    char key[32];
    snprintf(key, sizeof key, "slice%d.id", device->slice);
    *out = (unsigned)number(device->gpu, key, device->slice + 1);
    return 0;
}

/* GPM: `gpm 0` for a GPU without it, `Gpm.5 61.2` for a metric, `Gpm.5 !3` for one it lacks. */
typedef struct { int gpu; uint64_t at; } gpm_sample_t;
typedef struct { unsigned id; int result; double value; const char *names[3]; } gpm_metric_t;
typedef struct { unsigned version, count; gpm_sample_t *first, *second; gpm_metric_t metrics[]; } gpm_get_t;
typedef struct { unsigned version, supported; } gpm_support_t;
int nvmlGpmQueryDeviceSupport(device_t *device, gpm_support_t *out) {
    out->supported = (unsigned)number(device->gpu, "gpm", 1);
    return enter(device->gpu, "GpmQueryDeviceSupport");
}
int nvmlGpmSampleAlloc(gpm_sample_t **out) { *out = calloc(1, sizeof **out); return 0; }
int nvmlGpmSampleFree(gpm_sample_t *sample) { free(sample); return 0; }
int nvmlGpmSampleGet(device_t *device, gpm_sample_t *out) {
    *out = (gpm_sample_t){device->gpu, ++gpm_clock};
    return enter(device->gpu, "GpmSampleGet");
}
int nvmlGpmMigSampleGet(device_t *device, unsigned id, gpm_sample_t *out) { (void)id; return nvmlGpmSampleGet(device, out); }
int nvmlGpmMetricsGet(gpm_get_t *get) {
    /* The real library refuses samples in the wrong order as well. */
    if (!get->first->at || get->first->at >= get->second->at || get->first->gpu != get->second->gpu) return INVALID;
    for (unsigned i = 0; i < get->count; i++) {
        char key[32], value[96];
        snprintf(key, sizeof key, "Gpm.%u", get->metrics[i].id);
        int is_told = find(get->first->gpu, key, value);
        get->metrics[i].result = is_told && value[0] == '!' ? atoi(value + 1) : 0;
        get->metrics[i].value = is_told ? atof(value) : 0;
    }
    return 0;
}

/* Events: `event 7:8:31` is event number 7, type 8, detail 31; each number is delivered once to a waiter. */
typedef struct { device_t *device; unsigned long long type, detail; unsigned gi, ci; } event_t;
static long delivered[MAX_GPUS];
static int registered[MAX_GPUS];
int nvmlEventSetCreate(void **out) { *out = &delivered; return 0; }
int nvmlEventSetFree(void *set) { (void)set; return 0; }
int nvmlDeviceGetSupportedEventTypes(device_t *device, unsigned long long *out) {
    *out = (unsigned long long)number(device->gpu, "SupportedEventTypes", 65439);
    return enter(device->gpu, "SupportedEventTypes");
}
int nvmlDeviceRegisterEvents(device_t *device, unsigned long long types, void *set) {
    (void)types, (void)set;
    registered[device->gpu] = 1;
    return enter(device->gpu, "RegisterEvents");
}
int nvmlEventSetWait_v2(void *set, event_t *out, unsigned timeout_ms) {
    (void)set;
    for (unsigned waited = 0; waited <= timeout_ms; waited += 10) {
        for (int gpu = 0; gpu < MAX_GPUS; gpu++) {
            char value[96];
            long sequence;
            unsigned long long type, detail;
            if (!registered[gpu] || !find(gpu, "event", value)) continue;
            if (sscanf(value, "%ld:%llu:%llu", &sequence, &type, &detail) == 3 && sequence > delivered[gpu]) {
                delivered[gpu] = sequence;
                *out = (event_t){&gpus[gpu], type, detail, ~0u, ~0u};
                return 0;
            }
        }
        usleep(10000);
    }
    return TIMEOUT;
}
