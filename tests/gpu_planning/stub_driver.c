/* A driver without devices: it lets cuDNN be loaded and plan, and nothing run.
 *
 * Planning takes loading modules, asking for their functions and their attributes; all of that "works" on nothing.
 * Whatever would touch a device says that there is none.
 */
#include <stddef.h>

enum { SUCCESS = 0, NO_DEVICE = 100, DRIVER_VERSION = 13000 };

static int nothing;

#define NO_DEVICE_IN(name) \
    int name(void) { return NO_DEVICE; }
#define DONE_IN(name) \
    int name(void) { return SUCCESS; }
/* Functions that hand out something by their first argument. */
#define HANDED_OUT_BY(name, ...)         \
    int name(void **out, ##__VA_ARGS__)  \
    {                                    \
        if (out)                         \
            *out = &nothing;             \
        return SUCCESS;                  \
    }

NO_DEVICE_IN(cuCtxGetCurrent)
NO_DEVICE_IN(cuCtxGetLimit)
NO_DEVICE_IN(cuCtxPopCurrent)
NO_DEVICE_IN(cuCtxPushCurrent)
NO_DEVICE_IN(cuDeviceGet)
NO_DEVICE_IN(cuDeviceGetCount)
NO_DEVICE_IN(cuGetErrorName)
NO_DEVICE_IN(cuKernelSetAttribute)
NO_DEVICE_IN(cuLaunchCooperativeKernel)
NO_DEVICE_IN(cuLaunchKernel)
NO_DEVICE_IN(cuLaunchKernelEx)
NO_DEVICE_IN(cuLibraryLoadFromFile)
NO_DEVICE_IN(cuLinkAddData)
NO_DEVICE_IN(cuLinkComplete)
NO_DEVICE_IN(cuLinkCreate)
NO_DEVICE_IN(cuLinkDestroy)
NO_DEVICE_IN(cuOccupancyMaxPotentialClusterSize)
NO_DEVICE_IN(cuStreamGetCtx)
NO_DEVICE_IN(cuTensorMapEncodeIm2col)
NO_DEVICE_IN(cuTensorMapEncodeTiled)

DONE_IN(cuLibraryUnload)
DONE_IN(cuModuleUnload)

HANDED_OUT_BY(cuKernelGetFunction, void *kernel)
HANDED_OUT_BY(cuLibraryGetKernel, void *library, const char *name)
HANDED_OUT_BY(cuLibraryLoadData, const void *code)
HANDED_OUT_BY(cuModuleGetFunction, void *module, const char *name)
HANDED_OUT_BY(cuModuleLoadData, const void *image)

int cuDriverGetVersion(int *version)
{
    if (version)
        *version = DRIVER_VERSION;
    return SUCCESS;
}

int cuGetErrorString(int error, const char **text)
{
    (void)error;
    if (text)
        *text = "there is no device";
    return SUCCESS;
}

int cuKernelGetAttribute(int *value, int attribute, void *kernel, int device)
{
    (void)attribute, (void)kernel, (void)device;
    if (value)
        *value = 0;
    return SUCCESS;
}
