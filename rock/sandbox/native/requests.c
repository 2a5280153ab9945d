/* Who answers which request: one table, above everything that can be asked for. */
#define _GNU_SOURCE
#include "requests.h"

#include "exec.h"
#include "files.h"
#include "layers.h"
#include "look.h"
#include "mux.h"
#include "serve.h"
#include "storage.h"
#include "sweep.h"
#include "tree.h"
#include "wire.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

int answer_request(int conn) {
    struct frame frame;
    fcntl(conn, F_SETFL, 0); /* waiting is what this process is for */
    if (read_frame(conn, &frame) <= 0) return 0;
    switch (frame.type) {
    case REQ_PING: {
        struct writer writer = {.size = 0};
        put_u32(&writer, PROTOCOL_VERSION);
        put_u32(&writer, (uint32_t)getppid());
        return send_frame(conn, REP_PONG, writer.bytes, writer.size, NO_FD) ? 1 : 0;
    }
    case REQ_EXEC: return handle_exec(conn, &frame);
    case REQ_READ: return handle_read(conn, &frame);
    case REQ_WRITE: return handle_write(conn, &frame);
    case REQ_MKDIR: return handle_mkdir(conn, &frame);
    case REQ_PUT: return handle_put(conn, &frame);
    case REQ_GET: return handle_get(conn, &frame);
    case REQ_LISTEN: return handle_listen(conn, &frame);
    case REQ_SWEEP: return handle_sweep(conn, &frame);
    case REQ_FREEZE: return handle_freeze(conn, &frame);
    case REQ_COUNT: return handle_count(conn, &frame);
    case REQ_RENEW: return handle_renew(conn, &frame);
    case REQ_SWAP: return handle_swap(conn, &frame);
    case REQ_DROP: return handle_drop(conn, &frame);
    case REQ_TREE: return handle_tree(conn, &frame);
    case REQ_ADOPT: return handle_adopt(conn, &frame);
    case REQ_PREPARE: return handle_prepare(conn, &frame);
    case REQ_ATTACH: return handle_attach(conn, &frame);
    case REQ_STORE: return handle_store(conn, &frame);
    case REQ_UNSTORE: return handle_unstore(conn, &frame);
    case REQ_LOOK: return handle_look(conn, &frame);
    case REQ_MUX: return run_mux(conn, conn, answer_request);
    default: return reply_error(conn, STAGE_REQUEST, ENOSYS, "unknown request type") ? 1 : 0;
    }
}
