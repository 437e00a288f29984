package nodes

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-base/metrics/legacyregistry"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimev1 "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-client/pkg/logs"
	"k8s.io/klog/v2"
)

// logServer answers the API server when a client asks for a log, as kubelet does, and serves the agent's metrics.
type logServer struct {
	pods     *pods
	client   kubernetes.Interface
	listener net.Listener
}

// newLogServer listens on the kubelet port, at a loopback address only. Who asks needs a
// certificate of the client CA and the right to read nodes/proxy.
func newLogServer(config Config, client kubernetes.Interface, pods *pods) (*logServer, error) {
	serving, err := tls.LoadX509KeyPair(config.ServingCertFile, config.ServingKeyFile)
	if err != nil {
		return nil, fmt.Errorf("read serving certificate of node %s: %w", config.Name, err)
	}
	pem, err := os.ReadFile(config.ClientCAFile)
	if err != nil {
		return nil, fmt.Errorf("read client CA of node %s: %w", config.Name, err)
	}
	clients := x509.NewCertPool()
	if !clients.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("read client CA of node %s: %s holds no certificate", config.Name, config.ClientCAFile)
	}
	listener, err := net.Listen("tcp", net.JoinHostPort(config.KubeletAddress, strconv.Itoa(config.KubeletPort)))
	if err != nil {
		return nil, fmt.Errorf("listen on kubelet port of node %s: %w", config.Name, err)
	}
	return &logServer{pods: pods, client: client, listener: tls.NewListener(listener, &tls.Config{
		MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{serving}, NextProtos: []string{"h2", "http/1.1"},
		ClientCAs: clients, ClientAuth: tls.VerifyClientCertIfGiven, // as kubelet: without one the answer is 401
	})}, nil
}

func (s *logServer) serve(ctx context.Context) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") })
	mux.Handle("GET /metrics", legacyregistry.Handler())
	mux.HandleFunc("GET /containerLogs/{namespace}/{pod}/{container}", s.serveLog)
	for _, streaming := range []string{"exec", "attach", "portForward"} {
		mux.HandleFunc("/"+streaming+"/", refuseStreaming)
	}
	server := &http.Server{
		Handler: s.authorized(mux), ReadHeaderTimeout: 10 * time.Second,
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.Serve(s.listener); err != nil && !errors.Is(err, http.ErrServerClosed) {
		klog.FromContext(ctx).Error(err, "logs are not served any more")
	}
}

// refuseStreaming answers kubectl exec, cp, attach and port-forward: the containers of a belay node are plain processes without
// a runtime that could start another one beside them.
func refuseStreaming(w http.ResponseWriter, _ *http.Request) {
	http.Error(w, "the lab's belay nodes support neither exec, cp and attach nor port-forward, because their containers are plain processes; "+
		"use a lab with kubelet nodes (belay-lab up --nodes kubelet)", http.StatusNotImplemented)
}

// authorized asks the API server whether the holder of the certificate may.
func (s *logServer) authorized(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if len(r.TLS.PeerCertificates) == 0 {
			http.Error(w, "Unauthorized", http.StatusUnauthorized)
			return
		}
		who := r.TLS.PeerCertificates[0].Subject
		review, err := s.client.AuthorizationV1().SubjectAccessReviews().Create(r.Context(), &authorizationv1.SubjectAccessReview{
			Spec: authorizationv1.SubjectAccessReviewSpec{
				User: who.CommonName, Groups: append([]string{"system:authenticated"}, who.Organization...),
				ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "get", Version: "v1", Resource: "nodes", Subresource: "proxy", Name: s.pods.config.Name},
			},
		}, metav1.CreateOptions{})
		switch {
		case err != nil:
			http.Error(w, "ask the API server for permission: "+err.Error(), http.StatusInternalServerError)
		case !review.Status.Allowed:
			http.Error(w, who.CommonName+" may not get nodes/proxy", http.StatusForbidden)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

func (s *logServer) serveLog(w http.ResponseWriter, r *http.Request) {
	worker := s.pods.find(r.PathValue("namespace"), r.PathValue("pod"))
	if worker == nil {
		http.Error(w, fmt.Sprintf("pod %q does not exist", r.PathValue("pod")), http.StatusNotFound)
		return
	}
	options, err := readOptions(r.URL.Query())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	dir, err := worker.logDir(r.PathValue("container"), r.FormValue("previous") == "true")
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	out := flushing{w, http.NewResponseController(w)}
	err = logs.ReadLogs(r.Context(), filepath.Join(dir, logFile), dir, options, containerStates{}, out, out)
	if err != nil && r.Context().Err() == nil {
		klog.FromContext(r.Context()).Error(err, "log could not be read", "dir", dir)
	}
}

// readOptions are the query parameters of corev1.PodLogOptions.
func readOptions(query url.Values) (*logs.LogOptions, error) {
	options := &logs.LogOptions{Follow: query.Get("follow") == "true", Timestamp: query.Get("timestamps") == "true"}
	for name, set := range map[string]func(int64){
		"tailLines":    func(n int64) { options.TailLines = &n },
		"limitBytes":   func(n int64) { options.LimitBytes = &n },
		"sinceSeconds": func(n int64) { options.Since = time.Now().Add(-time.Duration(n) * time.Second) },
	} {
		text := query.Get(name)
		if text == "" {
			continue
		}
		number, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", name, err)
		}
		set(number)
	}
	if text := query.Get("sinceTime"); text != "" {
		since, err := time.Parse(time.RFC3339, text)
		if err != nil {
			return nil, fmt.Errorf("read sinceTime: %w", err)
		}
		options.Since = since
	}
	return options, nil
}

// logDir is the directory of the present or the previous attempt of a container.
func (k *podWorker) logDir(name string, previous bool) (string, error) {
	attempt := k.latestAttempt(name)
	if previous {
		attempt--
	}
	dir := k.attemptDir(name, attempt)
	if attempt < 0 {
		if previous {
			return "", fmt.Errorf("previous terminated container %q in pod %q not found", name, k.object().Name)
		}
		return "", fmt.Errorf("container %q in pod %q is waiting to start: %s", name, k.object().Name, reasonCreating)
	}
	if _, err := os.Stat(filepath.Join(dir, logFile)); err != nil {
		return "", fmt.Errorf("container %q in pod %q is waiting to start: %s", name, k.object().Name, reasonCreating)
	}
	return dir, nil
}

// flushing sends each line on at once, for those who follow.
type flushing struct {
	http.ResponseWriter
	controller *http.ResponseController
}

func (f flushing) Write(text []byte) (int, error) {
	n, err := f.ResponseWriter.Write(text)
	if err != nil {
		return n, err
	}
	return n, f.controller.Flush()
}

// containerStates answers the log reader, which expects a container runtime, whether a
// container still runs. The rest of that interface it does not use.
type containerStates struct {
	internalapi.RuntimeService
}

// ContainerStatus reads the state from the container's directory, which is its ID here.
func (containerStates) ContainerStatus(_ context.Context, dir string, _ bool) (*runtimev1.ContainerStatusResponse, error) {
	state := runtimev1.ContainerState_CONTAINER_RUNNING
	if _, err := os.Stat(filepath.Join(dir, endedFile)); err == nil {
		state = runtimev1.ContainerState_CONTAINER_EXITED
	}
	return &runtimev1.ContainerStatusResponse{Status: &runtimev1.ContainerStatus{Id: dir, State: state}}, nil
}
