/* What every command loses before it starts.
 *
 * No new privileges, no capabilities (also as the sandbox's root), and a short list of system calls
 * that reach the kernel's least-guarded corners or leave the sandbox: namespaces and mounts, keys,
 * eBPF, io_uring, module loading, and sockets to the hypervisor (AF_VSOCK is in no namespace).
 * A refused call gets EPERM, or ENOSYS where programs know how to fall back.
 */
#define _GNU_SOURCE
#include "harden.h"

#include "calls.h"

#include <errno.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
#define OUR_ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define OUR_ARCH AUDIT_ARCH_AARCH64
#else
#error "rock-init knows x86_64 and aarch64"
#endif

#define ALLOW BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)
#define REFUSE(error) BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (error))
#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define LOAD_UPPER_HALF(field) \
    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field) + 4)
#define IS(value, yes, no) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (value), (yes), (no))
#define HAS(bits, yes, no) BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, (bits), (yes), (no))
#define DENY(call, error) IS((call), 0, 1), REFUSE(error)

#define ALL_NAMESPACES                                                                         \
    (CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | \
     CLONE_NEWCGROUP)

/* Numbers from 424 on are the same on every architecture; older headers lack some of them. */
enum {
    CALL_FSOPEN = 430,
    CALL_FSCONFIG = 431,
    CALL_FSMOUNT = 432,
    CALL_FSPICK = 433,
    CALL_CLONE3 = 435,
    CALL_IO_URING_SETUP = 425,
    CALL_IO_URING_ENTER = 426,
    CALL_IO_URING_REGISTER = 427,
    CALL_QUOTACTL_FD = 443,
    CALL_OPEN_TREE_ATTR = 467,
};

static const struct sock_filter refused_calls[] = {
    LOAD(arch),
    IS(OUR_ARCH, 1, 0),
    REFUSE(EPERM),
    LOAD(nr),
#if defined(__x86_64__)
    /* The x32 variants of calls have numbers of their own. */
    BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, 0x40000000, 0, 1),
    REFUSE(ENOSYS),
#endif
    DENY(CALL_CLONE3, ENOSYS), /* its flags are behind a pointer; libraries fall back to clone */
    DENY(CALL_IO_URING_SETUP, ENOSYS),
    DENY(CALL_IO_URING_ENTER, ENOSYS),
    DENY(CALL_IO_URING_REGISTER, ENOSYS),
    DENY(__NR_mount, EPERM),
    DENY(__NR_umount2, EPERM),
    DENY(__NR_pivot_root, EPERM),
    DENY(__NR_chroot, EPERM),
    DENY(__NR_setns, EPERM),
    DENY(CALL_OPEN_TREE, EPERM),
    DENY(CALL_MOVE_MOUNT, EPERM),
    DENY(CALL_FSOPEN, EPERM),
    DENY(CALL_FSCONFIG, EPERM),
    DENY(CALL_FSMOUNT, EPERM),
    DENY(CALL_FSPICK, EPERM),
    DENY(CALL_MOUNT_SETATTR, EPERM),
    DENY(CALL_OPEN_TREE_ATTR, EPERM),
    DENY(__NR_add_key, EPERM),
    DENY(__NR_request_key, EPERM),
    DENY(__NR_keyctl, EPERM),
    DENY(__NR_bpf, EPERM),
    DENY(__NR_perf_event_open, EPERM),
    DENY(__NR_userfaultfd, EPERM),
    DENY(__NR_init_module, EPERM),
    DENY(__NR_finit_module, EPERM),
    DENY(__NR_delete_module, EPERM),
    DENY(__NR_kexec_load, EPERM),
    DENY(__NR_kexec_file_load, EPERM),
    DENY(__NR_fanotify_init, EPERM),
#if defined(__x86_64__)
    DENY(__NR_modify_ldt, ENOSYS), /* for 32-bit programs, which are refused */
#endif
    DENY(__NR_open_by_handle_at, EPERM),
    DENY(__NR_name_to_handle_at, EPERM),
    DENY(__NR_swapon, EPERM),
    DENY(__NR_swapoff, EPERM),
    DENY(__NR_acct, EPERM),
    DENY(__NR_quotactl, EPERM),
    DENY(CALL_QUOTACTL_FD, EPERM),
    DENY(__NR_reboot, EPERM),
    DENY(__NR_syslog, EPERM),
    /* clone and unshare: only with flags that make namespaces. */
    IS(__NR_clone, 1, 0),
    IS(__NR_unshare, 0, 4),
    LOAD(args[0]),
    HAS(ALL_NAMESPACES, 0, 1),
    REFUSE(EPERM),
    ALLOW,
    /* Sockets of the usual families. For others the kernel would load modules that few have read, and
     * those to the hypervisor are in no namespace. */
    IS(__NR_socketpair, 1, 0),
    IS(__NR_socket, 0, 7),
    LOAD(args[0]),
    IS(AF_UNIX, 4, 0),
    IS(AF_INET, 3, 0),
    IS(AF_INET6, 2, 0),
    IS(AF_NETLINK, 1, 0),
    REFUSE(EAFNOSUPPORT),
    ALLOW,
    /* ioctl: no typing into somebody else's terminal, no other line discipline (a module) for one. */
    IS(__NR_ioctl, 0, 5),
    LOAD(args[1]),
    IS(TIOCSETD, 1, 0),
    IS(TIOCSTI, 0, 1),
    REFUSE(EPERM),
    ALLOW,
    /* prlimit: a process's own limits only, or looking. Root inside has the number of the helper, whose
     * limits are those of every later command. */
    IS(__NR_prlimit64, 0, 8),
    LOAD(args[0]),
    IS(0, 5, 0),
    LOAD(args[2]),
    IS(0, 0, 2),
    LOAD_UPPER_HALF(args[2]),
    IS(0, 1, 0),
    REFUSE(EPERM),
    ALLOW,
    ALLOW,
};

void drop_bounding_set(void) {
    /* Needs CAP_SETPCAP, which a container may lack; without privileges to gain it changes nothing. */
    for (unsigned long cap = 0; prctl(PR_CAPBSET_READ, cap, 0, 0, 0) >= 0; cap++)
        prctl(PR_CAPBSET_DROP, cap, 0, 0, 0);
}

int drop_privileges(void) {
    struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct none[2];
    struct sock_fprog program = {
        .len = sizeof refused_calls / sizeof refused_calls[0],
        .filter = (struct sock_filter *)(uintptr_t)refused_calls,
    };
    memset(none, 0, sizeof none);
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) return errno;
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
    if (syscall(SYS_capset, &head, none)) return errno;
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0)) return errno;
    return 0;
}
