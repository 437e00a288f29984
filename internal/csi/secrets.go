package csi

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/go-logr/logr"
	"github.com/kubernetes-csi/csi-lib-utils/connection"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2"

	"belay.dev/belay/internal/decision"
)

// Secrets are the credentials of one request. They are kept no longer than the request and print as [REDACTED].
type Secrets map[string]string

const redacted = "[REDACTED]"

// String never shows a secret.
func (Secrets) String() string { return redacted }

// GoString never shows a secret.
func (Secrets) GoString() string { return redacted }

// minSecretLength is the length in bytes from which a line of a secret's value is redacted. Shorter ones ("1", "no") are part of
// other words.
const minSecretLength = 4

// redact removes every line of every value from a text. Lines, because a driver that repeats a PEM key may indent it or omit its
// last newline.
func (s Secrets) redact(text string) string {
	var lines []string
	for _, value := range s {
		for line := range strings.Lines(value) {
			if line = strings.TrimSpace(line); len(line) >= minSecretLength {
				lines = append(lines, line)
			}
		}
	}
	// The longest first: one may be part of another.
	slices.SortFunc(lines, func(a, b string) int { return cmp.Compare(len(b), len(a)) })
	for _, line := range lines {
		text = strings.ReplaceAll(text, line, redacted)
	}
	return text
}

// redactError returns the error of a call as it may be logged and stored: the driver's message without the secrets of its request,
// cut to the length that is kept of any text, and the same code. The details of the status are dropped: CSI allows none.
func (s Secrets) redactError(err error) error {
	answer, ok := status.FromError(err)
	if err == nil || !ok {
		return err
	}
	if message := decision.Text(s.redact(answer.Message())); message != answer.Message() {
		return status.Error(answer.Code(), message)
	}
	return err
}

// TokensKey is the key under which a request has the tokens of the pod's service account: in the volume context, or in the secrets
// (CSIDriver.spec.serviceAccountTokenInSecrets, KEP-2047, KEP-5538).
const TokensKey = "csi.storage.k8s.io/serviceAccount.tokens" //nolint:gosec // a name

// secretValues returns what must not appear in the driver's answer: the secrets, and each token.
func (v NodeVolume) secretValues() Secrets {
	all := Secrets{}
	maps.Copy(all, v.Secrets)
	for _, raw := range []string{v.Context[TokensKey], v.Secrets[TokensKey]} {
		var tokens map[string]struct{ Token string }
		if json.Unmarshal([]byte(raw), &tokens) != nil {
			continue
		}
		for audience, issued := range tokens {
			all[TokensKey+"/"+audience] = issued.Token
		}
	}
	return all
}

// redacting is a connection that logs each call, as csi-lib-utils does, after removing the secrets of the request from the driver's
// answer: the library removes them from requests and replies, not from errors.
type redacting struct{ grpc.ClientConnInterface }

// Invoke sends one call.
func (c redacting) Invoke(ctx context.Context, method string, request, reply any, options ...grpc.CallOption) error {
	send := func(ctx context.Context, method string, request, reply any, _ *grpc.ClientConn, options ...grpc.CallOption) error {
		var secrets Secrets
		if r, ok := request.(interface{ GetSecrets() map[string]string }); ok {
			secrets = r.GetSecrets()
		}
		// The connection's own log of the call has the original error.
		silent := klog.NewContext(ctx, logr.Discard())
		return secrets.redactError(c.ClientConnInterface.Invoke(silent, method, request, unread{reply}, append(options, unreadCodec)...))
	}
	if !klog.FromContext(ctx).V(5).Enabled() { // the level of LogGRPC, which formats the reply at any level
		return send(ctx, method, request, reply, nil, options...)
	}
	return connection.LogGRPC(ctx, method, request, reply, nil, send, options...)
}

// unread hides a reply from the connection's log of the call, which formats it even if nothing is logged: for the list of 20,000
// volumes, that took two thirds of the CPU time of a comparison.
type unread struct{ reply any }

// Reply is the reply, for connections of tests that answer in it.
func (u unread) Reply() any { return u.reply }

// unreadCodec is the usual codec, for a reply in unread.
var unreadCodec = grpc.ForceCodecV2(hiding{encoding.GetCodecV2(proto.Name)})

type hiding struct{ encoding.CodecV2 }

// Name has calls sent with the content type that they have without a codec of their own.
func (hiding) Name() string { return "" }

func (c hiding) Unmarshal(data mem.BufferSlice, into any) error {
	if hidden, ok := into.(unread); ok {
		into = hidden.reply
	}
	return c.CodecV2.Unmarshal(data, into)
}
