// Package proxy is an HTTP proxy between one component and the API server. It delays what the watch caches of the component receive
// of one resource, records each write, and lets a test act just before a write is forwarded or just after the response.
//
// The component has no credentials: the proxy has them. It listens on 127.0.0.1 until the context that it was started with ends.
//
// A Link is below HTTP: it passes connections on, until it is cut.
package proxy
