package nodes

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"sync"
	"time"
)

// logLine is how long a line may be before it is written in parts, as container
// runtimes do it.
const logLine = 16 << 10

// logWriter writes a container's output as the container runtime interface has it:
// time, stream, "F" for a full line or "P" for a part of one, text.
type logWriter struct {
	mu   sync.Mutex // one line at a time
	file *os.File
}

func (w *logWriter) copy(stream string, from io.Reader) {
	reader := bufio.NewReaderSize(from, logLine)
	for {
		text, err := reader.ReadSlice('\n')
		full := bytes.HasSuffix(text, []byte("\n"))
		if len(text) > 0 {
			w.write(stream, bytes.TrimSuffix(text, []byte("\n")), full || errors.Is(err, io.EOF))
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return
		}
	}
}

func (w *logWriter) write(stream string, text []byte, full bool) {
	tag := " P "
	if full {
		tag = " F "
	}
	line := time.Now().AppendFormat(nil, time.RFC3339Nano)
	line = append(line, ' ')
	line = append(line, stream...)
	line = append(line, tag...)
	line = append(append(line, text...), '\n')
	w.mu.Lock()
	defer w.mu.Unlock()
	_, _ = w.file.Write(line) // a full disk must not stop the container
}
